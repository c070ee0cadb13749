#include "argmax.h"

#include <cmath>

#include "lanes.h"

namespace dynact {

DYNACT_DISPATCH int32_t argmax(const float* x, size_t n) {
  const float low = -INFINITY;
  float best = low;
  size_t i = 0;
  if (n >= 32) {
    f32x8 m[4], v;
    for (auto& lane : m) lane = f32x8{low, low, low, low, low, low, low, low};
    for (; i + 32 <= n; i += 32) {
      for (int k = 0; k < 4; k++) {
        DYNACT_LOAD8(v, x + i + 8 * k);
        m[k] = v > m[k] ? v : m[k];
      }
    }
    for (auto& lane : m)
      for (int k = 0; k < 8; k++) best = lane[k] > best ? lane[k] : best;
  }
  for (; i < n; i++) best = x[i] > best ? x[i] : best;
  for (i = 0; i + 8 <= n; i += 8) {
    f32x8 v;
    DYNACT_LOAD8(v, x + i);
    i32x8 hit = v == best;
    if (hit[0] | hit[1] | hit[2] | hit[3] | hit[4] | hit[5] | hit[6] | hit[7]) break;
  }
  for (; i < n; i++)
    if (x[i] == best) return static_cast<int32_t>(i);
  return 0;
}

}  // namespace dynact
