// Philox4x32-10 (Salmon et al., SC'11): a counter-based generator. A draw is a function of its key and counter alone, so it
// does not matter which worker makes it, or when.
#pragma once
#include <array>
#include <cstdint>

namespace dynact {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; round++) {
    uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Uniform in [0, 1) with 53 bits.
inline double uniform(uint64_t seed, uint32_t position, uint32_t choice) {
  auto r = philox4x32({position, choice, 0, 0}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>((uint64_t{r[0]} << 21) ^ (r[1] >> 11)) * 0x1p-53;
}

}  // namespace dynact
