// A grammar (GBNF, as llama.cpp defines it) that a choice's text must follow: which tokens may come next, given those that came.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model.h"

namespace dynact {

// Longest grammar; the parser's own limits bound what it may repeat.
constexpr size_t kMaxGrammarBytes = 64u << 10;

class Grammar {
 public:
  // Null and `error` if the text is no grammar with a rule `root`, or could recurse without reading a token.
  static std::unique_ptr<Grammar> parse(const Model& model, const std::string& text, std::string& error);
  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  // Whether the token may come next. End tokens may, where the text is complete.
  bool allows(int32_t token) const;
  // Tokens that may not come next, ascending.
  const std::vector<int32_t>& banned();
  // Only a token that is allowed.
  void accept(int32_t token);

 private:
  Grammar(const Model& model, llama_sampler* sampler);

  const Model& model_;
  llama_sampler* const sampler_;
  std::vector<llama_token_data> candidates_;
  std::vector<int32_t> banned_;
};

}  // namespace dynact
