#include "model.h"

#include <sys/stat.h>

namespace dynact {

Model::Model(const LlamaApi& a, llama_model* h)
    : api(a), handle(h), vocab(a.llama_model_get_vocab(h)), vocab_tokens(a.llama_vocab_n_tokens(vocab)) {
  for (int32_t id = 0; id < vocab_tokens; id++)
    if (api.llama_vocab_is_eog(vocab, id)) end_tokens.push_back(id);
}

Model::~Model() { api.llama_model_free(handle); }

std::shared_ptr<Model> Model::load(const LlamaApi& api, const std::string& path, bool vocabulary_only, int gpu_layers,
                                   std::string& error) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    error = "no model file at " + path;
    return nullptr;
  }
  llama_model_params params = api.llama_model_default_params();
  params.n_gpu_layers = gpu_layers;
  params.vocab_only = vocabulary_only;
  // Not mapped: a file truncated under a mapping kills the process, and repacked weights share nothing anyway.
  params.load_mode = LLAMA_LOAD_MODE_NONE;
  llama_model* handle = api.llama_model_load_from_file(path.c_str(), params);
  if (!handle) {
    error = "not a usable model file (damaged, truncated or of an unknown kind): " + path;
    return nullptr;
  }
  std::shared_ptr<Model> model(new Model(api, handle));
  if (model->vocab_tokens <= 0) {
    error = "the model has no vocabulary: " + path;
    return nullptr;
  }
  if (!vocabulary_only && (api.llama_model_is_recurrent(handle) || api.llama_model_is_hybrid(handle) ||
                           api.llama_model_has_encoder(handle))) {
    error = "only decoder models with a plain attention cache are supported: " + path;
    return nullptr;
  }
  return model;
}

std::string Model::meta(const char* key) const {
  char small[256];
  int32_t n = api.llama_model_meta_val_str(handle, key, small, sizeof small);
  if (n < 0) return {};
  if (static_cast<size_t>(n) < sizeof small) return small;
  std::string text(static_cast<size_t>(n) + 1, '\0');
  api.llama_model_meta_val_str(handle, key, text.data(), text.size());
  text.resize(static_cast<size_t>(n));
  return text;
}

}  // namespace dynact
