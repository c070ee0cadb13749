#include "grammar.h"

#include <cmath>

namespace dynact {

std::unique_ptr<Grammar> Grammar::parse(const Model& model, const std::string& text, std::string& error) {
  if (text.size() > kMaxGrammarBytes) {
    error = "the grammar is longer than " + std::to_string(kMaxGrammarBytes) + " bytes";
    return nullptr;
  }
  // The library takes a C string.
  if (text.find('\0') != std::string::npos) {
    error = "the grammar holds a NUL";
    return nullptr;
  }
  llama_sampler* sampler = model.api.llama_sampler_init_grammar(model.vocab, text.c_str(), "root");
  if (!sampler) {
    error = "the grammar cannot be parsed";
    return nullptr;
  }
  return std::unique_ptr<Grammar>(new Grammar(model, sampler));
}

Grammar::Grammar(const Model& model, llama_sampler* sampler) : model_(model), sampler_(sampler) {}

Grammar::~Grammar() { model_.api.llama_sampler_free(sampler_); }

bool Grammar::allows(int32_t token) const {
  llama_token_data one{token, 0, 0};
  llama_token_data_array list{&one, 1, -1, false};
  model_.api.llama_sampler_apply(sampler_, &list);
  return std::isfinite(one.logit);
}

const std::vector<int32_t>& Grammar::banned() {
  candidates_.resize(static_cast<size_t>(model_.vocab_tokens));
  for (size_t i = 0; i < candidates_.size(); i++) candidates_[i] = {static_cast<int32_t>(i), 0, 0};
  llama_token_data_array list{candidates_.data(), candidates_.size(), -1, false};
  model_.api.llama_sampler_apply(sampler_, &list);
  banned_.clear();
  for (size_t i = 0; i < list.size; i++)
    if (!std::isfinite(list.data[i].logit)) banned_.push_back(list.data[i].id);
  return banned_;
}

void Grammar::accept(int32_t token) { model_.api.llama_sampler_accept(sampler_, token); }

}  // namespace dynact
