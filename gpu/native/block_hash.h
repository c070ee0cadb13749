// Dynamo's block identity: XXH3-64, seed 1337, chained over parents; LoRA name and salt folded into the seed of the local hash.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace dynact {

constexpr uint64_t kHashSeed = 1337;

// Seed for the local hashes of a request: kHashSeed, plus XXH3(salt, 1) if there is a salt, plus XXH3(lora, 0) if there is a LoRA. Wraps mod 2^64.
uint64_t salted_seed(std::string_view salt, std::string_view lora = {});

// Sequence hashes of the whole blocks of `tokens`; a short last block has an entry too when `partial` is set.
std::vector<uint64_t> sequence_hashes(const uint32_t* tokens, size_t count, size_t block_tokens, uint64_t seed, bool partial);

// Checksum of a block's bytes, seeded with its sequence hash: a foreign block of equal bytes fails too.
uint64_t block_checksum(const void* bytes, size_t count, uint64_t sequence_hash);

// The same in pieces, each as it is copied: the piece is summed while it is still in the core's cache.
class BlockChecksum {
 public:
  explicit BlockChecksum(uint64_t sequence_hash);
  void add(const void* bytes, size_t count);
  uint64_t sum() const;

 private:
  alignas(64) unsigned char state_[576];
};

}  // namespace dynact
