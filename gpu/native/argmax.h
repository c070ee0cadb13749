// Index of the largest value; the first of equals. NaN never wins.
#pragma once
#include <cstddef>
#include <cstdint>

namespace dynact {
int32_t argmax(const float* x, size_t n);
}
