// The state blob of one sequence as libllama writes and reads it, and its cutting into blocks. One stream per sequence:
//
//   u32 magic, i32 seq, u32 streams, then per stream u32 cells and, where cells > 0:
//     cells × { i32 pos, u32 1, i32 seq }, u32 v_trans (0), u32 layers,
//     layers × K { i32 type, u64 row bytes, cells rows }, layers × V { same }
//
// A block is the rows alone, part by part (K of layer 0, K of layer 1, … V of the last): `token_bytes` per token.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dynact {

class KvLayout {
 public:
  // Learns the layout from the blob of a sequence that holds `tokens` tokens. False and `error` for a form this engine does
  // not know (transposed V, recurrent state, sliding window, multi-dimensional positions).
  bool learn(const uint8_t* blob, size_t size, uint32_t streams, uint32_t tokens, std::string& error);

  size_t token_bytes() const { return token_bytes_; }
  uint32_t streams() const { return streams_; }
  size_t blob_bytes(uint32_t tokens) const;
  // Names the form of a block; equal on both ends or the hand-off is refused. At most 64 characters.
  const std::string& name() const { return name_; }
  const std::string& kv_type() const { return kv_type_; }

  // Every field of a blob that get_data wrote for `tokens` tokens: positions 0 … tokens − 1 in order, one sequence, this layout.
  bool check(const uint8_t* blob, size_t size, uint32_t tokens, std::string& error) const;
  // Rows [from, from + count) of a checked blob of `tokens` tokens, into one block or two (either may be null). Returns the
  // checksum of what is in `block` then, seeded with `hash`.
  uint64_t cut(const uint8_t* blob, uint32_t tokens, uint32_t from, uint32_t count, uint64_t hash, uint8_t* block, uint8_t* second) const;
  // Writes everything but the rows of a blob of `tokens` tokens.
  void begin(uint8_t* blob, uint32_t tokens) const;
  // Puts a block's rows where they belong in a blob of `tokens` tokens.
  void place(uint8_t* blob, uint32_t tokens, uint32_t from, uint32_t count, const uint8_t* block) const;
  // The same for rows that somebody else may still be writing: `second` (if not null) gets a copy of what the blob got, and the
  // checksum is that of the copies, whatever becomes of the source.
  uint64_t receive(uint8_t* blob, uint32_t tokens, uint32_t from, uint32_t count, uint64_t hash, const uint8_t* block, uint8_t* second) const;

 private:
  struct Part {
    int32_t type;
    uint64_t row;
  };
  // Offset of the first cell record: the stream that has the cells may be any.
  size_t find_cells(const uint8_t* blob, size_t size, uint32_t tokens, std::string& error) const;

  std::vector<Part> parts_;
  uint32_t layers_ = 0;
  uint32_t streams_ = 0;
  size_t token_bytes_ = 0;
  std::string name_, kv_type_;
};

}  // namespace dynact
