// A libllama of a few lines for the engine's tests: the KV of a position is a function of every KV before it, and the logits are
// a function of the KV, so any wrong, missing or foreign row changes the tokens. Kernels are modelled as well: a row computed
// in a call of 64 or more rows differs from one of fewer in its last bit, as on the real CPU back end, and so does a lone row over
// more than 256 cells by the number of threads.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>

#include "../llama_api.h"

namespace fake {

constexpr int kVocab = 997;
constexpr int kEnd = 3;  // the only end token
constexpr uint32_t kRow = 16;  // bytes per layer and token, for K and for V
constexpr uint32_t kLayers = 2;

struct Faults {
  std::atomic<int> fail_decode_in{-1};  // the n-th decode from now returns `code`
  std::atomic<int> code{1};
  std::atomic<int> graphs{0};           // runs of consecutive ids over all decode calls
  std::atomic<int> mixed{0};            // calls that hold both a multi-row and another sequence
  std::atomic<int> most_rows{0};
  std::atomic<bool> nan{false};
  std::atomic<int> live_contexts{0}, live_models{0};
  std::atomic<bool> refuse_state{false};  // set_data returns 0
  std::function<void()> during_decode;    // runs in every decode call, if set
};
extern Faults faults;

const dynact::LlamaApi& api();

}  // namespace fake
