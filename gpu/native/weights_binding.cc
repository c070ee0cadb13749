// How good a weights file still is: its perplexity on a text. Runs in a process of its own (gpu/weights-child.ts).
#include <algorithm>
#include <cmath>
#include <vector>

#include "binding.h"
#include "model.h"

namespace dynact {
std::string take_library_error();
}

namespace {

using dynact::Model;

constexpr int32_t kBatch = 256;
// The first tokens of a text say little about a model: it has nothing to go by yet.
constexpr int32_t kSkip = 32;

struct Context {
  const dynact::LlamaApi& api;
  llama_context* handle;
  ~Context() {
    if (handle != nullptr) api.llama_free(handle);
  }
};

std::vector<llama_token> tokenize(const Model& model, const char* text, int32_t length) {
  std::vector<llama_token> tokens(static_cast<size_t>(length) + 2);
  const int32_t count =
      model.api.llama_tokenize(model.vocab, text, length, tokens.data(), static_cast<int32_t>(tokens.size()), true, false);
  tokens.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return tokens;
}

// Negative log likelihood of `next` under `logits`; double, for the sum runs over the whole vocabulary.
double surprise(const float* logits, int32_t vocab, llama_token next) {
  const float top = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int32_t id = 0; id < vocab; ++id) sum += std::exp(static_cast<double>(logits[id]) - top);
  return std::log(sum) + top - logits[next];
}

// perplexity(path: string, utf8: Uint8Array, threads: number): [perplexity: number, tokens: number]
Napi::Value perplexity(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const dynact::LlamaApi* api = dynact::llama_api();
  if (api == nullptr) throw Napi::Error::New(env, "libllama is not loaded");
  const auto text = info[1].As<Napi::Uint8Array>();
  std::string error;
  const auto model = Model::load(*api, info[0].As<Napi::String>(), false, 0, error);
  if (model == nullptr) throw Napi::Error::New(env, error + ": " + dynact::take_library_error());
  const std::vector<llama_token> tokens =
      tokenize(*model, reinterpret_cast<const char*>(text.Data()), static_cast<int32_t>(text.ByteLength()));
  const int32_t count = std::min<int32_t>(static_cast<int32_t>(tokens.size()), api->llama_model_n_ctx_train(model->handle));
  if (count <= kSkip + 1) throw Napi::Error::New(env, "the text is too short to measure a perplexity");

  llama_context_params params = api->llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>((count + 255) / 256 * 256);
  params.n_batch = params.n_ubatch = kBatch;
  params.n_seq_max = 1;
  params.n_threads = params.n_threads_batch = info[2].As<Napi::Number>().Int32Value();
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  const Context context{*api, api->llama_init_from_model(model->handle, params)};
  if (context.handle == nullptr) throw Napi::Error::New(env, "no context: " + dynact::take_library_error());

  double total = 0;
  int32_t measured = 0;
  for (int32_t from = 0; from < count; from += kBatch) {
    const int32_t rows = std::min(kBatch, count - from);
    std::vector<llama_token> part(tokens.begin() + from, tokens.begin() + from + rows);
    std::vector<llama_pos> pos(rows);
    std::vector<int32_t> sequences(rows, 1);
    std::vector<llama_seq_id> zero(rows, 0);
    std::vector<llama_seq_id*> ids(rows);
    std::vector<int8_t> wanted(rows, 1);
    for (int32_t row = 0; row < rows; ++row) {
      pos[row] = from + row;
      ids[row] = &zero[row];
    }
    llama_batch batch = {};
    batch.n_tokens = rows;
    batch.token = part.data();
    batch.pos = pos.data();
    batch.n_seq_id = sequences.data();
    batch.seq_id = ids.data();
    batch.logits = wanted.data();
    if (api->llama_decode(context.handle, batch) != 0) {
      throw Napi::Error::New(env, "the model cannot be evaluated: " + dynact::take_library_error());
    }
    for (int32_t row = 0; row < rows; ++row) {
      const int32_t at = from + row;
      if (at < kSkip || at + 1 >= count) continue;
      const float* logits = api->llama_get_logits_ith(context.handle, row);
      if (logits == nullptr) throw Napi::Error::New(env, "the model gives no logits");
      total += surprise(logits, model->vocab_tokens, tokens[at + 1]);
      ++measured;
    }
  }
  auto out = Napi::Array::New(env, 2);
  out[0u] = Napi::Number::New(env, std::exp(total / measured));
  out[1u] = Napi::Number::New(env, measured);
  return out;
}

}  // namespace

void init_weights(Napi::Env env, Napi::Object exports) {
  exports.Set("perplexity", Napi::Function::New<perplexity>(env, "perplexity"));
}
