#include "block_hash.h"

#include <cstring>

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace dynact {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "hashes are defined over little-endian token ids");

uint64_t salted_seed(std::string_view salt, std::string_view lora) {
  uint64_t seed = kHashSeed;
  if (!salt.empty()) seed += XXH3_64bits_withSeed(salt.data(), salt.size(), 1);
  if (!lora.empty()) seed += XXH3_64bits_withSeed(lora.data(), lora.size(), 0);
  return seed;
}

std::vector<uint64_t> sequence_hashes(const uint32_t* tokens, size_t count, size_t block_tokens, uint64_t seed, bool partial) {
  std::vector<uint64_t> hashes;
  if (block_tokens == 0) return hashes;
  hashes.reserve(count / block_tokens + 1);
  for (size_t from = 0; from < count; from += block_tokens) {
    const size_t size = count - from < block_tokens ? count - from : block_tokens;
    if (size < block_tokens && !partial) break;
    const uint64_t local = XXH3_64bits_withSeed(tokens + from, size * sizeof(uint32_t), seed);
    if (hashes.empty()) {
      hashes.push_back(local);
    } else {
      const uint64_t link[2] = {hashes.back(), local};
      // The chain always uses the plain seed; salt and LoRA are in the local hashes already.
      hashes.push_back(XXH3_64bits_withSeed(link, sizeof link, kHashSeed));
    }
  }
  return hashes;
}

uint64_t block_checksum(const void* bytes, size_t count, uint64_t sequence_hash) {
  return XXH3_64bits_withSeed(bytes, count, sequence_hash);
}

static_assert(sizeof(XXH3_state_t) <= 576 && alignof(XXH3_state_t) <= 64, "BlockChecksum has room for the state");

BlockChecksum::BlockChecksum(uint64_t sequence_hash) {
  auto* state = reinterpret_cast<XXH3_state_t*>(state_);
  XXH3_INITSTATE(state);
  XXH3_64bits_reset_withSeed(state, sequence_hash);
}

void BlockChecksum::add(const void* bytes, size_t count) { XXH3_64bits_update(reinterpret_cast<XXH3_state_t*>(state_), bytes, count); }

uint64_t BlockChecksum::sum() const { return XXH3_64bits_digest(reinterpret_cast<const XXH3_state_t*>(state_)); }

}  // namespace dynact
