// What enters and leaves the engine; the native side of gpu/engine.ts.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kv_fetch.h"
#include "prefix_cache.h"
#include "sampler.h"

namespace dynact {

enum class Code { full, too_long, bad_request, unknown_key, decode_failed, mismatch, gone, pool_full, stopped };

inline const char* code_name(Code code) {
  static const char* const names[] = {"GPU_FULL",          "GPU_TOO_LONG",        "GPU_BAD_REQUEST",
                                      "GPU_UNKNOWN_KEY",   "GPU_DECODE_FAILED",   "GPU_HANDOFF_MISMATCH",
                                      "GPU_HANDOFF_GONE",  "GPU_POOL_FULL",       "GPU_STOPPED"};
  return names[static_cast<int>(code)];
}

struct Error {
  Code code;
  std::string message;
};
// Empty = accepted.
using Verdict = std::optional<Error>;

struct ChoiceSpec {
  uint32_t index = 0;
  std::vector<int32_t> generated;
};

struct Request {
  uint32_t key = 0;
  std::vector<int32_t> prompt;
  std::vector<ChoiceSpec> choices;
  Sampling sampling;
  uint32_t max_tokens = 1;
  uint32_t min_tokens = 0;
  bool ignore_eos = false;
  int32_t logprobs = 0;  // 0 = none, -1 = the token's own, n = with n alternatives
  std::string cache_salt;
};

struct HandoffDesc {
  PoolDesc pool;
  std::string fingerprint, kv_type, layout;
  uint32_t block_tokens = 0, prompt_tokens = 0, first_block = 0, lease_ms = 0;
  std::vector<BlockDesc> blocks;
};

// Leading blocks of a prompt that a peer has in its cache and lends.
struct PrefixDesc {
  PoolDesc pool;
  std::string fingerprint, kv_type, layout;
  std::vector<BlockDesc> blocks;
};

struct FirstToken {
  uint32_t choice = 0;
  int32_t token = 0;
  bool finished = false;
};

// `finishCodes` of transport/messages.ts.
enum Finish : uint32_t { kGoesOn = 0, kStop = 1, kLength = 2 };

struct StepEvents {
  struct Token {
    uint32_t key, choice, position;
    int32_t token;
    uint32_t finish;
    int32_t logprobs;  // index into `logprobs`, -1 = none
  };
  struct Progress {
    uint32_t key, done, total, cached;
  };
  struct Exported {
    uint32_t key;
    std::vector<BlockDesc> blocks;
  };
  struct Prefilled {
    uint32_t key, cached;
  };
  struct Failed {
    uint32_t key;
    Error error;
  };
  uint64_t steps = 0;
  std::vector<Token> tokens;
  std::vector<Logprobs> logprobs;
  std::vector<Progress> progress;
  std::vector<Exported> exported;
  std::vector<Prefilled> prefilled;
  std::vector<uint32_t> committed;
  std::vector<Failed> failed;
  std::vector<CacheChange> cache;

  bool empty() const {
    return tokens.empty() && progress.empty() && exported.empty() && prefilled.empty() && committed.empty() && failed.empty() &&
           cache.empty();
  }
};

}  // namespace dynact
