// A model file as libllama holds it: weights or, for the gateway, the vocabulary alone.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "llama_api.h"

namespace dynact {

class Model {
 public:
  // `gpu_layers`: 0 keeps everything on the CPU. Null and `error` if the file is missing, damaged or of an unsupported kind.
  static std::shared_ptr<Model> load(const LlamaApi& api, const std::string& path, bool vocabulary_only, int gpu_layers,
                                     std::string& error);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const LlamaApi& api;
  llama_model* const handle;
  const llama_vocab* const vocab;
  const int32_t vocab_tokens;
  // Ids that end a generation.
  std::vector<int32_t> end_tokens;

  std::string meta(const char* key) const;

 private:
  Model(const LlamaApi& api, llama_model* handle);
};

}  // namespace dynact
