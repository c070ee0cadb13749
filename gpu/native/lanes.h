// Eight floats at a time, in plain vector extensions: the compiler turns them into AVX2 or into pairs of SSE or NEON
// registers, and the order of additions is the same on all of them, so sums do not depend on the machine.
#pragma once
#include <cstdint>
#include <cstring>

namespace dynact {

typedef float f32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));

// (ThreadSanitizer is not up yet when such a choice is made.)
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
// One copy of the function per instruction set, chosen when the addon loads.
#define DYNACT_DISPATCH __attribute__((target_clones("avx2", "default")))
#else
#define DYNACT_DISPATCH
#endif

// Always inlined into the dispatched functions: passing such vectors by value has no portable calling convention.
#define DYNACT_INLINE inline __attribute__((always_inline))

#define DYNACT_LOAD8(v, p) std::memcpy(&(v), (p), sizeof(f32x8))

}  // namespace dynact
