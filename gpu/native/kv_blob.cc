#include "kv_blob.h"

#include <cstring>

#include "block_hash.h"

namespace dynact {
namespace {

constexpr uint32_t kMagic = 0xaf143cd8;
constexpr size_t kCell = 12, kPartHead = 12;

template <class T>
T read(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
void write(uint8_t* p, T v) {
  std::memcpy(p, &v, sizeof v);
}

// ggml_type values that can hold KV rows.
const char* type_name(int32_t type) {
  switch (type) {
    case 0: return "f32";
    case 1: return "f16";
    case 8: return "q8_0";
    case 30: return "bf16";
    default: return nullptr;
  }
}

}  // namespace

size_t KvLayout::find_cells(const uint8_t* blob, size_t size, uint32_t tokens, std::string& error) const {
  auto bad = [&](const char* what) {
    error = std::string("KV state: ") + what;
    return size_t{0};
  };
  if (size < 12 + 4 * size_t{streams_}) return bad("too short");
  if (read<uint32_t>(blob) != kMagic) return bad("wrong magic");
  if (read<uint32_t>(blob + 8) != streams_) return bad("wrong number of streams");
  size_t at = 12;
  uint32_t stream = 0;
  while (stream < streams_ && read<uint32_t>(blob + at) == 0) at += 4, stream++;
  if (stream == streams_) return bad("empty");
  if (read<uint32_t>(blob + at) != tokens) return bad("wrong number of cells");
  at += 4;
  if (size < at + kCell * size_t{tokens} + 8 + 4 * size_t{streams_ - stream - 1}) return bad("too short");
  for (uint32_t i = 0; i < tokens; i++) {
    const uint8_t* cell = blob + at + kCell * i;
    if (read<int32_t>(cell) != static_cast<int32_t>(i)) return bad("positions are not in order");
    if (read<uint32_t>(cell + 4) != 1) return bad("a cell belongs to several sequences");
  }
  return at;
}

bool KvLayout::learn(const uint8_t* blob, size_t size, uint32_t streams, uint32_t tokens, std::string& error) {
  streams_ = streams;
  parts_.clear();
  size_t cells = find_cells(blob, size, tokens, error);
  if (!cells) return false;
  size_t trailing = 0;
  // Zero counts of the streams behind the one that has the cells.
  for (size_t at = 12; read<uint32_t>(blob + at) == 0; at += 4) trailing++;
  trailing = 4 * (streams - 1 - trailing);
  size_t at = cells + kCell * size_t{tokens};
  if (read<uint32_t>(blob + at) != 0) {
    error = "KV state: values are transposed; flash attention must be on";
    return false;
  }
  layers_ = read<uint32_t>(blob + at + 4);
  at += 8;
  if (layers_ == 0 || layers_ > 4096) {
    error = "KV state: impossible number of layers";
    return false;
  }
  uint64_t mix = 1469598103934665603u;  // FNV-1a over all parts: equal names mean equal forms
  token_bytes_ = 0;
  while (at + kPartHead <= size - trailing && parts_.size() < 2 * size_t{layers_}) {
    Part part{read<int32_t>(blob + at), read<uint64_t>(blob + at + 4)};
    if (!type_name(part.type) || part.row == 0 || part.row > (size - at - kPartHead) / tokens) {
      error = "KV state: unknown row type or size";
      return false;
    }
    at += kPartHead + part.row * tokens;
    token_bytes_ += part.row;
    for (uint64_t v : {static_cast<uint64_t>(part.type), part.row}) mix = (mix ^ v) * 1099511628211u;
    parts_.push_back(part);
  }
  if (parts_.size() < layers_ || at + trailing != size) {
    error = "KV state: the model keeps more than plain attention rows";
    return false;
  }
  kv_type_ = type_name(parts_[0].type);
  char text[64];
  std::snprintf(text, sizeof text, "rows1-%ux%zu-%zu-%016llx", layers_, parts_.size(), token_bytes_,
                static_cast<unsigned long long>(mix));
  name_ = text;
  return true;
}

size_t KvLayout::blob_bytes(uint32_t tokens) const {
  return 12 + 4 * size_t{streams_} + kCell * size_t{tokens} + 8 + parts_.size() * kPartHead + token_bytes_ * tokens;
}

bool KvLayout::check(const uint8_t* blob, size_t size, uint32_t tokens, std::string& error) const {
  if (tokens == 0 || size != blob_bytes(tokens)) {
    error = "KV state: wrong size";
    return false;
  }
  size_t at = find_cells(blob, size, tokens, error);
  if (!at) return false;
  at += kCell * size_t{tokens};
  bool good = read<uint32_t>(blob + at) == 0 && read<uint32_t>(blob + at + 4) == layers_;
  at += 8;
  for (const Part& part : parts_) {
    good = good && read<int32_t>(blob + at) == part.type && read<uint64_t>(blob + at + 4) == part.row;
    at += kPartHead + part.row * tokens;
  }
  if (!good) error = "KV state: the layout changed";
  return good;
}

uint64_t KvLayout::cut(const uint8_t* blob, uint32_t tokens, uint32_t from, uint32_t count, uint64_t hash, uint8_t* block,
                       uint8_t* second) const {
  BlockChecksum checksum(hash);
  size_t at = 12;
  while (read<uint32_t>(blob + at) == 0) at += 4;
  at += 4 + kCell * size_t{tokens} + 8;
  for (const Part& part : parts_) {
    const uint8_t* rows = blob + at + kPartHead + part.row * from;
    const size_t size = part.row * count;
    if (block) {
      std::memcpy(block, rows, size);
      checksum.add(block, size);
      block += size;
    }
    if (second) {
      std::memcpy(second, rows, size);
      second += size;
    }
    at += kPartHead + part.row * tokens;
  }
  return checksum.sum();
}

void KvLayout::begin(uint8_t* blob, uint32_t tokens) const {
  write<uint32_t>(blob, kMagic);
  write<int32_t>(blob + 4, 0);
  write<uint32_t>(blob + 8, streams_);
  write<uint32_t>(blob + 12, tokens);
  size_t at = 16;
  for (uint32_t i = 0; i < tokens; i++, at += kCell) {
    write<int32_t>(blob + at, static_cast<int32_t>(i));
    write<uint32_t>(blob + at + 4, 1);
    write<int32_t>(blob + at + 8, 0);
  }
  write<uint32_t>(blob + at, 0);
  write<uint32_t>(blob + at + 4, layers_);
  at += 8;
  for (const Part& part : parts_) {
    write<int32_t>(blob + at, part.type);
    write<uint64_t>(blob + at + 4, part.row);
    at += kPartHead + part.row * tokens;
  }
  std::memset(blob + at, 0, 4 * size_t{streams_ - 1});
}

void KvLayout::place(uint8_t* blob, uint32_t tokens, uint32_t from, uint32_t count, const uint8_t* block) const {
  size_t at = 16 + kCell * size_t{tokens} + 8;
  for (const Part& part : parts_) {
    std::memcpy(blob + at + kPartHead + part.row * from, block, part.row * count);
    block += part.row * count;
    at += kPartHead + part.row * tokens;
  }
}

uint64_t KvLayout::receive(uint8_t* blob, uint32_t tokens, uint32_t from, uint32_t count, uint64_t hash, const uint8_t* block,
                           uint8_t* second) const {
  BlockChecksum checksum(hash);
  size_t at = 16 + kCell * size_t{tokens} + 8;
  for (const Part& part : parts_) {
    uint8_t* rows = blob + at + kPartHead + part.row * from;
    const size_t size = part.row * count;
    std::memcpy(rows, block, size);
    checksum.add(rows, size);
    if (second) {
      std::memcpy(second, rows, size);
      second += size;
    }
    block += size;
    at += kPartHead + part.row * tokens;
  }
  return checksum.sum();
}

}  // namespace dynact
