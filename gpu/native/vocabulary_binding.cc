// JavaScript's view of the library itself, of a vocabulary and of weight conversion.
#include <memory>
#include <mutex>

#include "binding.h"
#include "grammar.h"
#include "model.h"

namespace {

using dynact::LlamaApi;
using dynact::Model;

std::mutex log_mutex;
std::string last_error;

// The library explains a failure only in its log; the last such line goes into our message.
void on_log(int level, const char* line) {
  if (level < GGML_LOG_LEVEL_ERROR) return;
  std::lock_guard<std::mutex> lock(log_mutex);
  last_error = line;
  while (!last_error.empty() && last_error.back() == '\n') last_error.pop_back();
}

}  // namespace

namespace dynact {

// For error messages; cleared by the call.
std::string take_library_error() {
  std::lock_guard<std::mutex> lock(log_mutex);
  std::string text = std::move(last_error);
  last_error.clear();
  return text;
}

}  // namespace dynact

namespace {

std::string explained(std::string error) {
  std::string detail = dynact::take_library_error();
  return detail.empty() ? error : error + " (" + detail + ")";
}

const LlamaApi& need_api(Napi::Env env) {
  const LlamaApi* api = dynact::llama_api();
  if (!api) throw Napi::Error::New(env, "loadLibrary has not been called");
  return *api;
}

// loadLibrary(folder: string): { version, devices: { name, description, gpu }[] }
Napi::Value load_library(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  dynact::set_log_sink(on_log, GGML_LOG_LEVEL_ERROR);
  std::string error;
  const LlamaApi* api = dynact::load_llama(info[0].ToString(), error);
  if (!api) throw Napi::Error::New(env, error);
  auto result = Napi::Object::New(env);
  result.Set("version", api->llama_version());
  auto devices = Napi::Array::New(env);
  for (size_t i = 0; i < api->ggml_backend_dev_count(); i++) {
    auto device = api->ggml_backend_dev_get(i);
    auto type = api->ggml_backend_dev_type(device);
    auto entry = Napi::Object::New(env);
    entry.Set("name", api->ggml_backend_dev_name(device));
    entry.Set("description", api->ggml_backend_dev_description(device));
    entry.Set("gpu", type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU);
    devices.Set(static_cast<uint32_t>(i), entry);
  }
  result.Set("devices", devices);
  return result;
}

class Vocabulary final : public Napi::ObjectWrap<Vocabulary> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "Vocabulary",
                       {InstanceAccessor<&Vocabulary::facts>("facts"), InstanceMethod<&Vocabulary::tokenize>("tokenize"),
                        InstanceMethod<&Vocabulary::piece>("piece"), InstanceMethod<&Vocabulary::grammar_fault>("grammarFault")});
  }

  // new Vocabulary(path: string): reads the vocabulary only, tens of milliseconds.
  explicit Vocabulary(const Napi::CallbackInfo& info) : ObjectWrap(info) {
    std::string error;
    model_ = Model::load(need_api(info.Env()), info[0].ToString(), true, 0, error);
    if (!model_) throw Napi::Error::New(info.Env(), explained(error));
  }

 private:
  Napi::Value facts(const Napi::CallbackInfo& info) {
    Napi::Env env = info.Env();
    const LlamaApi& api = model_->api;
    auto token_text = [&](int32_t id) { return id < 0 ? std::string() : std::string(api.llama_vocab_get_text(model_->vocab, id)); };
    const char* chat = api.llama_model_chat_template(model_->handle, nullptr);
    const std::string architecture = model_->meta("general.architecture");
    auto ends = Napi::Uint32Array::New(env, model_->end_tokens.size());
    for (size_t i = 0; i < model_->end_tokens.size(); i++) ends[i] = static_cast<uint32_t>(model_->end_tokens[i]);
    auto facts = Napi::Object::New(env);
    facts.Set("size", model_->vocab_tokens);
    facts.Set("chatTemplate", chat ? chat : "");
    facts.Set("contextTokens", model_->meta((architecture + ".context_length").c_str()));
    facts.Set("bosToken", token_text(api.llama_vocab_bos(model_->vocab)));
    facts.Set("eosToken", token_text(api.llama_vocab_eos(model_->vocab)));
    facts.Set("addsBos", api.llama_vocab_get_add_bos(model_->vocab));
    facts.Set("endTokens", ends);
    facts.Set("name", model_->meta("general.name"));
    return facts;
  }

  // tokenize(utf8: Uint8Array, special: boolean, addBos: boolean): Uint32Array
  Napi::Value tokenize(const Napi::CallbackInfo& info) {
    auto utf8 = info[0].As<Napi::Uint8Array>();
    if (utf8.ByteLength() > 64u << 20) throw Napi::RangeError::New(info.Env(), "more than 64 MiB of text");
    const bool special = info[1].As<Napi::Boolean>(), add_bos = info[2].As<Napi::Boolean>();
    const int32_t bos = model_->api.llama_vocab_bos(model_->vocab);
    std::vector<int32_t> tokens(utf8.ByteLength() + 8);
    auto run = [&] {
      return model_->api.llama_tokenize(model_->vocab, reinterpret_cast<const char*>(utf8.Data()),
                                        static_cast<int32_t>(utf8.ByteLength()), tokens.data(),
                                        static_cast<int32_t>(tokens.size()), false, special);
    };
    int32_t n = run();
    if (n < 0 && n != INT32_MIN) {
      tokens.resize(static_cast<size_t>(-n));
      n = run();
    }
    if (n < 0) throw Napi::Error::New(info.Env(), "the text cannot be tokenized");
    const size_t lead = add_bos && bos >= 0 ? 1 : 0;
    auto out = Napi::Uint32Array::New(info.Env(), static_cast<size_t>(n) + lead);
    if (lead) out[0] = static_cast<uint32_t>(bos);
    for (size_t i = 0; i < static_cast<size_t>(n); i++) out[i + lead] = static_cast<uint32_t>(tokens[i]);
    return out;
  }

  // piece(token: number): Uint8Array
  Napi::Value piece(const Napi::CallbackInfo& info) {
    const int64_t id = info[0].As<Napi::Number>().Int64Value();
    if (id < 0 || id >= model_->vocab_tokens) throw Napi::RangeError::New(info.Env(), "no such token");
    std::vector<char> bytes(128);
    auto run = [&] {
      return model_->api.llama_token_to_piece(model_->vocab, static_cast<int32_t>(id), bytes.data(),
                                              static_cast<int32_t>(bytes.size()), 0, false);
    };
    int32_t n = run();
    if (n < 0) {
      bytes.resize(static_cast<size_t>(-n));
      n = run();
    }
    auto out = Napi::Uint8Array::New(info.Env(), static_cast<size_t>(std::max(n, 0)));
    std::copy_n(bytes.data(), std::max(n, 0), reinterpret_cast<char*>(out.Data()));
    return out;
  }

  // grammarFault(gbnf: string): string, '' if the engine can follow it
  Napi::Value grammar_fault(const Napi::CallbackInfo& info) {
    std::string error;
    dynact::Grammar::parse(*model_, info[0].ToString(), error);
    return Napi::String::New(info.Env(), error);
  }

  std::shared_ptr<Model> model_;
};

class Quantize final : public Napi::AsyncWorker {
 public:
  Quantize(Napi::Env env, const LlamaApi& api, std::string from, std::string to, int32_t ftype, int32_t threads)
      : AsyncWorker(env), promise(Napi::Promise::Deferred::New(env)), api_(api), from_(std::move(from)), to_(std::move(to)) {
    params_ = api.llama_model_quantize_default_params();
    params_.nthread = threads;
    params_.ftype = static_cast<llama_ftype>(ftype);
    params_.allow_requantize = true;
    // One type for every tensor, so that the tied output matrix gets repacked kernels too.
    params_.pure = true;
  }
  void Execute() override {
    if (api_.llama_model_quantize(from_.c_str(), to_.c_str(), &params_) != 0)
      SetError(explained("the model could not be converted: " + from_));
  }
  void OnOK() override { promise.Resolve(Env().Undefined()); }
  void OnError(const Napi::Error& error) override { promise.Reject(error.Value()); }

  Napi::Promise::Deferred promise;

 private:
  const LlamaApi& api_;
  std::string from_, to_;
  llama_model_quantize_params params_;
};

// quantize(from: string, to: string, ftype: number, threads: number): Promise<void>
Napi::Value quantize(const Napi::CallbackInfo& info) {
  auto* worker = new Quantize(info.Env(), need_api(info.Env()), info[0].ToString(), info[1].ToString(),
                              info[2].As<Napi::Number>(), info[3].As<Napi::Number>());
  worker->Queue();
  return worker->promise.Promise();
}

}  // namespace

void init_vocabulary(Napi::Env env, Napi::Object exports) {
  exports.Set("loadLibrary", Napi::Function::New<load_library>(env, "loadLibrary"));
  exports.Set("Vocabulary", Vocabulary::define(env));
  exports.Set("quantize", Napi::Function::New<quantize>(env, "quantize"));
}
