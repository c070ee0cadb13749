#include "fake_llama.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

// The library's own handles are opaque, so the fake may define them.
struct llama_vocab {};
struct llama_model {
  llama_vocab vocab;
};
struct Row {
  int32_t pos;
  uint64_t value;
};
struct llama_context {
  llama_context_params params;
  uint32_t per_sequence;
  std::vector<std::vector<Row>> streams;
  std::vector<std::vector<float>> logits;  // by row of the last call; empty = no output
};

namespace fake {
Faults faults;
namespace {

uint64_t mix(uint64_t x) {
  x ^= x >> 30, x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27, x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

llama_context* context_of(llama_memory_t memory) { return reinterpret_cast<llama_context*>(memory); }

void expect(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "the library would have aborted: %s\n", what);
  std::abort();
}

int32_t decode(llama_context* c, llama_batch b) {
  expect(b.n_tokens > 0 && static_cast<uint32_t>(b.n_tokens) <= c->params.n_batch, "n_tokens out of range");
  if (c->params.abort_callback && c->params.abort_callback(c->params.abort_callback_data)) return 2;
  if (faults.during_decode) faults.during_decode();
  if (faults.fail_decode_in >= 0 && faults.fail_decode_in-- == 0) return faults.code;
  std::map<int, std::vector<int>> rows;
  for (int i = 0; i < b.n_tokens; i++) {
    if (b.token[i] < 0 || b.token[i] >= kVocab) return -1;
    expect(b.seq_id[i][0] >= 0 && b.seq_id[i][0] < static_cast<int>(c->streams.size()), "sequence id out of range");
    rows[b.seq_id[i][0]].push_back(i);
    if (i > 0 && b.seq_id[i][0] < b.seq_id[i - 1][0]) faults.graphs++;
  }
  int last = -2;
  for (auto& [seq, list] : rows) {
    if (seq != last + 1) faults.graphs++;
    last = seq;
    if (rows.size() > 1 && list.size() > 1) faults.mixed++;
    auto& cells = c->streams[static_cast<size_t>(seq)];
    if (cells.size() + list.size() > c->per_sequence) return 1;
    if (b.pos[list[0]] != static_cast<int32_t>(cells.size())) return -1;
  }
  int most = faults.most_rows;
  while (b.n_tokens > most && !faults.most_rows.compare_exchange_weak(most, b.n_tokens)) {
  }
  c->logits.assign(static_cast<size_t>(b.n_tokens), {});
  uint32_t outputs = 0;
  for (auto& [seq, list] : rows) {
    auto& cells = c->streams[static_cast<size_t>(seq)];
    uint64_t kernel = list.size() >= 64 ? 1 : 0;
    if (b.n_tokens == 1 && cells.size() >= 256) kernel ^= static_cast<uint64_t>(c->params.n_threads - 1) << 8;
    for (int i : list) {
      uint64_t before = 0;
      for (const Row& r : cells) before = mix(before ^ r.value) + static_cast<uint64_t>(r.pos);
      const uint64_t value = mix(before ^ (static_cast<uint64_t>(b.token[i]) << 20) ^ static_cast<uint64_t>(b.pos[i])) << 1 ^ kernel;
      cells.push_back({b.pos[i], value});
      if (!b.logits[i]) continue;
      outputs++;
      auto& out = c->logits[static_cast<size_t>(i)];
      out.resize(kVocab);
      for (int t = 0; t < kVocab; t++)
        out[static_cast<size_t>(t)] = faults.nan ? NAN : static_cast<float>(mix(value + static_cast<uint64_t>(t)) % 8000) / 1000.0f;
    }
  }
  expect(outputs <= c->params.n_outputs_max, "more outputs than reserved");
  return 0;
}

bool seq_rm(llama_memory_t m, llama_seq_id seq, llama_pos p0, llama_pos p1) {
  expect(p1 < 0, "only tails of sequences are removed here");
  auto& cells = context_of(m)->streams[static_cast<size_t>(seq)];
  while (!cells.empty() && cells.back().pos >= p0) cells.pop_back();
  return true;
}

size_t state_size(llama_context* c, llama_seq_id seq) {
  const size_t n = c->streams[static_cast<size_t>(seq)].size();
  return 12 + 4 * c->streams.size() + (n ? 12 * n + 8 + 2 * kLayers * (12 + kRow * n) : 0);
}

size_t state_get(llama_context* c, uint8_t* out, size_t size, llama_seq_id seq) {
  if (size < state_size(c, seq)) return 0;
  uint8_t* p = out;
  auto put = [&p](auto v) { std::memcpy(p, &v, sizeof v), p += sizeof v; };
  put(uint32_t{0xaf143cd8}), put(int32_t{seq}), put(static_cast<uint32_t>(c->streams.size()));
  for (int s = 0; s < static_cast<int>(c->streams.size()); s++) {
    const auto& cells = c->streams[static_cast<size_t>(s)];
    if (s != seq || cells.empty()) {
      put(uint32_t{0});
      continue;
    }
    put(static_cast<uint32_t>(cells.size()));
    for (const Row& r : cells) put(r.pos), put(uint32_t{1}), put(int32_t{seq});
    put(uint32_t{0}), put(kLayers);
    for (uint32_t part = 0; part < 2 * kLayers; part++) {
      put(int32_t{1}), put(uint64_t{kRow});
      for (const Row& r : cells) put(r.value), put(r.value ^ part);
    }
  }
  return static_cast<size_t>(p - out);
}

size_t state_set(llama_context* c, const uint8_t* in, size_t size, llama_seq_id seq) {
  if (faults.refuse_state) return 0;
  expect(seq >= 0 && seq < static_cast<int>(c->streams.size()), "sequence id out of range");
  auto& cells = c->streams[static_cast<size_t>(seq)];
  cells.clear();
  const uint8_t *p = in, *end = in + size;
  auto get = [&](auto v) {
    if (p + sizeof v <= end) std::memcpy(&v, p, sizeof v);
    p += sizeof v;
    return v;
  };
  if (get(uint32_t{}) != 0xaf143cd8) return 0;
  get(int32_t{});
  if (get(uint32_t{}) != c->streams.size()) return 0;
  uint32_t n = 0;
  for (size_t s = 0; s < c->streams.size() && n == 0; s++) n = get(uint32_t{});
  if (n == 0 || n > c->per_sequence || size != 12 + 4 * c->streams.size() + 12 * n + 8 + 2 * kLayers * (12 + size_t{kRow} * n)) return 0;
  cells.resize(n);
  for (Row& r : cells) r.pos = get(int32_t{}), get(uint32_t{}), get(int32_t{});
  get(uint32_t{}), get(uint32_t{});
  for (uint32_t part = 0; part < 2 * kLayers; part++) {
    get(int32_t{}), get(uint64_t{});
    for (Row& r : cells) {
      const uint64_t a = get(uint64_t{}), b = get(uint64_t{});
      // Every part matters: a row that differs in one of them is another row.
      r.value = part == 0 ? a : r.value;
      if (a != r.value || b != (r.value ^ part)) r.value = mix(a ^ b ^ part);
    }
  }
  return size;
}

dynact::LlamaApi make() {
  dynact::LlamaApi a;
  a.llama_version = [] { return "fake"; };
  a.llama_model_default_params = [] { return llama_model_params{}; };
  a.llama_context_default_params = [] { return llama_context_params{}; };
  a.llama_max_parallel_sequences = [] { return size_t{256}; };
  a.llama_model_load_from_file = [](const char*, llama_model_params) {
    faults.live_models++;
    return new llama_model;
  };
  a.llama_model_free = [](llama_model* m) {
    faults.live_models--;
    delete m;
  };
  a.llama_model_get_vocab = [](const llama_model* m) -> const llama_vocab* { return &m->vocab; };
  a.llama_model_n_ctx_train = [](const llama_model*) { return int32_t{4096}; };
  a.llama_model_is_recurrent = [](const llama_model*) { return false; };
  a.llama_model_is_hybrid = [](const llama_model*) { return false; };
  a.llama_model_has_encoder = [](const llama_model*) { return false; };
  a.llama_vocab_n_tokens = [](const llama_vocab*) { return int32_t{kVocab}; };
  a.llama_vocab_is_eog = [](const llama_vocab*, llama_token t) { return t == kEnd; };
  a.llama_vocab_bos = [](const llama_vocab*) { return llama_token{1}; };
  a.llama_init_from_model = [](llama_model*, llama_context_params p) -> llama_context* {
    expect(p.n_outputs_max >= p.n_seq_max, "n_outputs_max < n_seq_max");
    expect(!p.kv_unified && p.flash_attn_type == LLAMA_FLASH_ATTN_TYPE_ENABLED, "another attention mode than the engine's rules");
    auto* c = new llama_context{p, p.n_ctx / p.n_seq_max, {}, {}};
    c->streams.resize(p.n_seq_max);
    faults.live_contexts++;
    return c;
  };
  a.llama_free = [](llama_context* c) {
    faults.live_contexts--;
    delete c;
  };
  a.llama_n_ctx_seq = [](const llama_context* c) { return c->per_sequence; };
  a.llama_get_memory = [](const llama_context* c) {
    return reinterpret_cast<llama_memory_t>(const_cast<llama_context*>(c));
  };
  a.llama_memory_seq_rm = seq_rm;
  a.llama_memory_seq_pos_min = [](llama_memory_t m, llama_seq_id s) {
    const auto& cells = context_of(m)->streams[static_cast<size_t>(s)];
    return cells.empty() ? llama_pos{-1} : cells.front().pos;
  };
  a.llama_memory_seq_pos_max = [](llama_memory_t m, llama_seq_id s) {
    const auto& cells = context_of(m)->streams[static_cast<size_t>(s)];
    return cells.empty() ? llama_pos{-1} : cells.back().pos;
  };
  a.llama_state_seq_get_size = state_size;
  a.llama_state_seq_get_data = state_get;
  a.llama_state_seq_set_data = state_set;
  a.llama_decode = decode;
  a.llama_set_n_threads = [](llama_context* c, int32_t one, int32_t) { c->params.n_threads = one; };
  a.ggml_backend_reg_by_name = [](const char*) -> ggml_backend_reg_t { return nullptr; };
  a.llama_synchronize = [](llama_context*) {};
  a.llama_get_logits_ith = [](llama_context* c, int32_t i) -> float* {
    auto& row = c->logits[static_cast<size_t>(i)];
    return row.empty() ? nullptr : row.data();
  };
  return a;
}

}  // namespace

const dynact::LlamaApi& api() {
  static const dynact::LlamaApi table = make();
  return table;
}

}  // namespace fake
