// From logits to a token: penalties, logit bias, temperature, min-p, top-k, top-p, then a draw keyed by (seed, position,
// choice). A pure function of (logits, request, tokens so far, position, choice): design 6.3.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dynact {

struct Sampling {
  float temperature = 1;
  uint32_t top_k = 0;  // 0 = off
  float top_p = 1;
  float min_p = 0;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  float repetition_penalty = 1;
  std::vector<std::pair<int32_t, float>> logit_bias;
  uint64_t seed = 0;
  std::string grammar;  // GBNF; empty = any text
};

class Grammar;

// log probability of the token and of the likeliest alternatives, from the logits as the model gave them.
struct Logprobs {
  float own = 0;
  std::vector<std::pair<int32_t, float>> top;
};

// Which tokens a choice has seen, as the penalties need it. Cheap to keep; empty when no penalty is on.
class TokenHistory {
 public:
  TokenHistory(const Sampling& sampling, const std::vector<int32_t>& prompt);
  void add(int32_t token);

 private:
  friend class Sampler;
  bool active_;
  bool repetition_;
  std::unordered_map<int32_t, uint32_t> counts_;  // generated only; 0 = prompt only
};

class Sampler {
 public:
  explicit Sampler(size_t vocab);

  // `masked` tokens cannot be drawn (end tokens below min_tokens), nor what `grammar` does not allow. Logits are put back as they
  // were. -1: no finite logit, or no token is allowed.
  int32_t sample(float* logits, const Sampling& sampling, const TokenHistory& history, const std::vector<int32_t>* masked,
                 uint32_t position, uint32_t choice, Grammar* grammar = nullptr);
  // `alternatives` likeliest tokens, best first.
  Logprobs logprobs(const float* logits, int32_t token, uint32_t alternatives);

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  void change(float* logits, int32_t id, float value);
  int32_t pick(const float* logits, const Sampling& sampling, uint32_t position, uint32_t stream);
  void top(const float* logits, size_t k);  // into found_, best first
  void above(const float* logits, float threshold);  // into found_, by id
  int32_t draw(const float* logits, float max, const Sampling& sampling, double u);
  int32_t draw_whole(const float* logits, float max, float scale, double u);

  size_t vocab_;
  std::vector<std::pair<int32_t, float>> changed_;
  std::vector<Candidate> found_;
  std::vector<double> weights_;
};

}  // namespace dynact
