#include "sampler.h"

#include <algorithm>
#include <cmath>

#include "argmax.h"
#include "grammar.h"
#include "lanes.h"
#include "philox.h"

namespace dynact {
namespace {

constexpr float kGreedyBelow = 1e-5f;
// The draw after a token that the grammar refused is another one than the first. There are at most 128 choices.
constexpr uint32_t kSecondDraw = 256;
// Tokens per partial sum when the draw is over the whole vocabulary.
constexpr size_t kStripe = 512;

// e^x for x ≤ 0, relative error below 2e-7 above -87, 0 underneath. Cody-Waite reduction and a degree-6 polynomial.
DYNACT_INLINE f32x8 exp8(f32x8 x) {
  const f32x8 zero = {};
  const f32x8 floor = zero - 87.0f;
  i32x8 tiny = x < floor;
  x = tiny ? floor : x;
  f32x8 shifted = x * 1.44269504f + 12582912.0f;  // 1.5 · 2^23: rounds to the nearest integer
  f32x8 n = shifted - 12582912.0f;
  f32x8 r = x - n * 0.693359375f + n * 2.12194440e-4f;
  f32x8 p = zero + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  i32x8 exponent = (__builtin_convertvector(n, i32x8) + 127) << 23;
  f32x8 power;
  std::memcpy(&power, &exponent, sizeof power);
  f32x8 value = p * power;
  return tiny ? zero : value;
}

// Σ e^((x − max)·scale) over n values.
DYNACT_DISPATCH double mass(const float* x, size_t n, float max, float scale) {
  f32x8 sum = {}, v;
  double total = 0;
  size_t i = 0;
  while (i + 8 <= n) {
    // Float lanes are flushed into a double often enough that small terms are not lost.
    size_t end = std::min(n - n % 8, i + 4096);
    sum = f32x8{};
    for (; i + 8 <= end; i += 8) {
      DYNACT_LOAD8(v, x + i);
      sum += exp8((v - max) * scale);
    }
    for (int k = 0; k < 8; k++) total += static_cast<double>(sum[k]);
  }
  if (i < n) {
    float rest[8];
    for (size_t k = 0; k < 8; k++) rest[k] = i + k < n ? x[i + k] : -INFINITY;
    DYNACT_LOAD8(v, rest);
    v = exp8((v - max) * scale);
    for (size_t k = 0; k < n - i; k++) total += static_cast<double>(v[k]);
  }
  return total;
}

// First index from `from` on whose value is above (or, if `equal`, at) the threshold; n if none.
DYNACT_DISPATCH size_t next_above(const float* x, size_t from, size_t n, float threshold, bool equal) {
  size_t i = from;
  for (; i + 16 <= n; i += 16) {
    f32x8 a, b;
    DYNACT_LOAD8(a, x + i);
    DYNACT_LOAD8(b, x + i + 8);
    i32x8 hit = equal ? ((a >= threshold) | (b >= threshold)) : ((a > threshold) | (b > threshold));
    uint64_t w[4];
    std::memcpy(w, &hit, sizeof w);
    if (w[0] | w[1] | w[2] | w[3]) break;
  }
  for (; i < n; i++)
    if (equal ? x[i] >= threshold : x[i] > threshold) return i;
  return n;
}

double weight(float logit, float max, float scale) {
  return std::exp(static_cast<double>((logit - max) * scale));
}

}  // namespace

TokenHistory::TokenHistory(const Sampling& s, const std::vector<int32_t>& prompt)
    : active_(s.frequency_penalty != 0 || s.presence_penalty != 0 || s.repetition_penalty != 1),
      repetition_(s.repetition_penalty != 1) {
  if (repetition_)
    for (int32_t token : prompt) counts_.emplace(token, 0);
}

void TokenHistory::add(int32_t token) {
  if (active_) counts_[token]++;
}

Sampler::Sampler(size_t vocab) : vocab_(vocab) { found_.reserve(1024); }

void Sampler::change(float* logits, int32_t id, float value) {
  changed_.emplace_back(id, logits[id]);
  logits[id] = value;
}

int32_t Sampler::sample(float* logits, const Sampling& s, const TokenHistory& history, const std::vector<int32_t>* masked,
                        uint32_t position, uint32_t choice, Grammar* grammar) {
  changed_.clear();
  if (history.active_) {
    for (const auto& [id, count] : history.counts_) {
      float v = logits[id];
      if (s.repetition_penalty != 1) v = v > 0 ? v / s.repetition_penalty : v * s.repetition_penalty;
      if (count > 0) v -= static_cast<float>(count) * s.frequency_penalty + s.presence_penalty;
      change(logits, id, v);
    }
  }
  for (const auto& [id, bias] : s.logit_bias) change(logits, id, logits[id] + bias);
  if (masked)
    for (int32_t id : *masked) change(logits, id, -INFINITY);

  int32_t token = pick(logits, s, position, choice);
  // Most tokens are allowed, and to ask for one is a thousandth of the cost of asking for all: so the first draw is over all tokens,
  // and a second over those that are allowed if it fails. Together they draw from the allowed ones' own distribution.
  if (grammar && token >= 0 && !grammar->allows(token)) {
    for (int32_t id : grammar->banned()) change(logits, id, -INFINITY);
    token = pick(logits, s, position, choice + kSecondDraw);
  }

  // Backwards, because an id may have been changed more than once.
  for (size_t i = changed_.size(); i-- > 0;) logits[changed_[i].first] = changed_[i].second;
  return token;
}

int32_t Sampler::pick(const float* logits, const Sampling& s, uint32_t position, uint32_t stream) {
  const int32_t best = argmax(logits, vocab_);
  const float max = logits[best];
  if (!std::isfinite(max)) return -1;
  return s.temperature >= kGreedyBelow && s.top_k != 1 ? draw(logits, max, s, uniform(s.seed, position, stream)) : best;
}

void Sampler::top(const float* logits, size_t k) {
  auto better = [](const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; };
  k = std::min(k, vocab_);
  found_.clear();
  // A buffer of twice k is cut back to the best k whenever it is full; what is not above the k-th best so far never enters.
  // Ids rise, so of equal logits the lower id is there first and a later equal one has no claim.
  const size_t cap = std::max<size_t>(2 * k, 64);
  float threshold = -INFINITY;
  for (size_t i = next_above(logits, 0, vocab_, threshold, false); i < vocab_;
       i = next_above(logits, i + 1, vocab_, threshold, false)) {
    found_.push_back({logits[i], static_cast<int32_t>(i)});
    if (found_.size() == cap) {
      std::nth_element(found_.begin(), found_.begin() + static_cast<ptrdiff_t>(k) - 1, found_.end(), better);
      found_.resize(k);
      threshold = found_[k - 1].logit;
    }
  }
  std::sort(found_.begin(), found_.end(), better);
  if (found_.size() > k) found_.resize(k);
}

void Sampler::above(const float* logits, float threshold) {
  found_.clear();
  for (size_t i = next_above(logits, 0, vocab_, threshold, true); i < vocab_;
       i = next_above(logits, i + 1, vocab_, threshold, true))
    found_.push_back({logits[i], static_cast<int32_t>(i)});
}

int32_t Sampler::draw(const float* logits, float max, const Sampling& s, double u) {
  const float scale = 1 / s.temperature;
  const bool cut_k = s.top_k > 0 && s.top_k < vocab_, cut_p = s.top_p < 1, cut_min = s.min_p > 0;
  if (!cut_k && !cut_p && !cut_min) return draw_whole(logits, max, scale, u);
  const float floor = cut_min ? max + std::log(s.min_p) * s.temperature : -INFINITY;

  double total = 0;  // mass that top-p is a share of
  if (cut_k) {
    top(logits, s.top_k);
  } else {
    float threshold = floor;
    if (cut_p) {
      // Everything below contributes less than the tail that top-p drops anyway.
      double all = mass(logits, vocab_, max, scale);
      double reach = std::log(static_cast<double>(vocab_) / ((1 - static_cast<double>(s.top_p)) * all)) + 0.01;
      threshold = std::max(threshold, max - static_cast<float>(reach) * s.temperature);
      if (!cut_min) total = all;
    }
    above(logits, threshold);
    std::sort(found_.begin(), found_.end(),
              [](const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; });
  }
  while (cut_min && found_.size() > 1 && found_.back().logit < floor) found_.pop_back();

  weights_.resize(found_.size());
  double sum = 0;
  for (size_t i = 0; i < found_.size(); i++) sum += weights_[i] = weight(found_[i].logit, max, scale);
  size_t kept = found_.size();
  if (cut_p) {
    const double goal = static_cast<double>(s.top_p) * (total > 0 ? total : sum);
    double run = 0;
    for (kept = 0; kept < found_.size() && run < goal; kept++) run += weights_[kept];
    kept = std::max<size_t>(kept, 1);
    sum = std::max(run, weights_[0]);
  }
  double left = u * sum;
  for (size_t i = 0; i < kept; i++)
    if ((left -= weights_[i]) < 0) return found_[i].id;
  return found_[kept - 1].id;
}

int32_t Sampler::draw_whole(const float* logits, float max, float scale, double u) {
  weights_.clear();
  double total = 0;
  for (size_t i = 0; i < vocab_; i += kStripe) {
    weights_.push_back(mass(logits + i, std::min(kStripe, vocab_ - i), max, scale));
    total += weights_.back();
  }
  double left = u * total;
  size_t stripe = 0;
  while (stripe + 1 < weights_.size() && left >= weights_[stripe]) left -= weights_[stripe++];
  int32_t last = -1;
  for (size_t i = stripe * kStripe, end = std::min(vocab_, i + kStripe); i < end; i++) {
    double w = weight(logits[i], max, scale);
    if (w <= 0) continue;
    last = static_cast<int32_t>(i);
    if ((left -= w) < 0) return last;
  }
  // Rounding between the two ways of summing: the last token that has any mass, or the best one.
  return last >= 0 ? last : argmax(logits, vocab_);
}

Logprobs Sampler::logprobs(const float* logits, int32_t token, uint32_t alternatives) {
  Logprobs result;
  float max = logits[argmax(logits, vocab_)];
  float log_total = max + static_cast<float>(std::log(mass(logits, vocab_, max, 1)));
  result.own = logits[token] - log_total;
  if (alternatives > 0) {
    top(logits, alternatives);
    for (const Candidate& c : found_) result.top.emplace_back(c.id, c.logit - log_total);
  }
  return result;
}

}  // namespace dynact
