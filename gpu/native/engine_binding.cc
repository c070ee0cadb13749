// JavaScript's view of the engine. Steps cross as packed arrays, one call per step; while JavaScript is busy, steps are merged
// into one pending call, so a slow event loop costs latency and never tokens.
#include <memory>
#include <mutex>

#include "binding.h"
#include "engine.h"

namespace dynact {
std::string take_library_error();
}

namespace {

using namespace dynact;

// Steps on their way to JavaScript. Bounded by what the live requests may still produce. The thread-safe function owns a reference,
// given up when it is finalized: a call that is queued then, or a wrapper collected before it, cannot leave it dangling.
struct Channel {
  std::mutex mutex;
  StepEvents pending;
  std::optional<Error> died;
  bool scheduled = false, closed = false;
  Napi::ThreadSafeFunction to_js;

  void schedule() {  // holds mutex
    if (scheduled || closed) return;
    scheduled = to_js.NonBlockingCall(this, [](Napi::Env env, Napi::Function f, Channel* self) {
      if (env != nullptr) self->deliver(env, f);
    }) == napi_ok;
  }

  void add(StepEvents&& e) {
    std::lock_guard<std::mutex> lock(mutex);
    auto append = [](auto& to, auto& from) {
      to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
    };
    const auto base = static_cast<int32_t>(pending.logprobs.size());
    for (auto& t : e.tokens)
      if (t.logprobs >= 0) t.logprobs += base;
    pending.steps = e.steps;
    append(pending.tokens, e.tokens);
    append(pending.logprobs, e.logprobs);
    append(pending.progress, e.progress);
    append(pending.exported, e.exported);
    append(pending.prefilled, e.prefilled);
    append(pending.committed, e.committed);
    append(pending.failed, e.failed);
    append(pending.cache, e.cache);
    schedule();
  }

  void forget(uint32_t key) {
    std::lock_guard<std::mutex> lock(mutex);
    auto drop = [key](auto& list) {
      list.erase(std::remove_if(list.begin(), list.end(), [key](const auto& e) { return e.key == key; }), list.end());
    };
    drop(pending.tokens), drop(pending.progress), drop(pending.exported), drop(pending.prefilled), drop(pending.failed);
    auto& c = pending.committed;
    c.erase(std::remove(c.begin(), c.end(), key), c.end());
  }

  static std::shared_ptr<Channel> open(Napi::Env env, Napi::Function f) {
    auto channel = std::make_shared<Channel>();
    auto* owned = new std::shared_ptr<Channel>(channel);
    channel->to_js = Napi::ThreadSafeFunction::New(env, f, "dynact engine", 0, 1, owned,
                                                   [](Napi::Env, std::shared_ptr<Channel>* held) { delete held; });
    return channel;
  }

  void close() {
    std::lock_guard<std::mutex> lock(mutex);
    closed = true;
  }

  void deliver(Napi::Env env, Napi::Function f);
};

template <class T>
Napi::Value packed(Napi::Env env, const std::vector<T>& list) {
  static_assert(sizeof(T) % 4 == 0, "packed as 32-bit numbers");
  auto out = Napi::Uint32Array::New(env, list.size() * (sizeof(T) / 4));
  if (!list.empty()) std::memcpy(out.Data(), list.data(), list.size() * sizeof(T));
  return out;
}

// [stored, count]… of runs of one kind, and the hashes of all of them.
Napi::Value cache_changes(Napi::Env env, const std::vector<CacheChange>& changes) {
  std::vector<uint32_t> runs;
  auto hashes = Napi::BigUint64Array::New(env, changes.size());
  for (size_t i = 0; i < changes.size(); i++) {
    const uint32_t stored = changes[i].stored;
    if (runs.empty() || runs[runs.size() - 2] != stored) runs.insert(runs.end(), {stored, 0});
    runs.back()++;
    hashes[i] = changes[i].hash;
  }
  auto pair = Napi::Array::New(env, 2);
  pair.Set(0u, packed(env, runs));
  pair.Set(1u, hashes);
  return pair;
}

void Channel::deliver(Napi::Env env, Napi::Function f) {
  StepEvents e;
  std::optional<Error> end;
  {
    std::lock_guard<std::mutex> lock(mutex);
    scheduled = false;
    if (closed) return;
    std::swap(e, pending);
    std::swap(end, died);
  }
  auto step = Napi::Object::New(env);
  step.Set("steps", static_cast<double>(e.steps));
  step.Set("tokens", packed(env, e.tokens));
  step.Set("progress", packed(env, e.progress));
  step.Set("prefilled", packed(env, e.prefilled));
  step.Set("committed", packed(env, e.committed));
  auto logprobs = Napi::Array::New(env, e.logprobs.size());
  for (uint32_t i = 0; i < e.logprobs.size(); i++) {
    const Logprobs& l = e.logprobs[i];
    auto flat = Napi::Float64Array::New(env, 1 + 2 * l.top.size());
    flat[0] = l.own;
    for (size_t k = 0; k < l.top.size(); k++) flat[1 + 2 * k] = l.top[k].first, flat[2 + 2 * k] = l.top[k].second;
    logprobs.Set(i, flat);
  }
  step.Set("logprobs", logprobs);
  auto exported = Napi::Array::New(env, e.exported.size());
  for (uint32_t i = 0; i < e.exported.size(); i++) {
    const auto& blocks = e.exported[i].blocks;
    auto numbers = Napi::Float64Array::New(env, 4 * blocks.size());
    auto hashes = Napi::BigUint64Array::New(env, 2 * blocks.size());
    for (size_t k = 0; k < blocks.size(); k++) {
      const BlockDesc& b = blocks[k];
      numbers[4 * k] = b.index, numbers[4 * k + 1] = b.tokens;
      numbers[4 * k + 2] = static_cast<double>(b.offset), numbers[4 * k + 3] = b.bytes;
      hashes[2 * k] = b.checksum, hashes[2 * k + 1] = b.hash;
    }
    auto entry = Napi::Array::New(env, 3);
    entry.Set(0u, e.exported[i].key);
    entry.Set(1u, numbers);
    entry.Set(2u, hashes);
    exported.Set(i, entry);
  }
  step.Set("exported", exported);
  auto failure = [&](uint32_t key, const Error& error) {
    auto entry = Napi::Array::New(env, 3);
    entry.Set(0u, key);
    entry.Set(1u, code_name(error.code));
    entry.Set(2u, error.message);
    return entry;
  };
  auto failed = Napi::Array::New(env, e.failed.size());
  for (uint32_t i = 0; i < e.failed.size(); i++) failed.Set(i, failure(e.failed[i].key, e.failed[i].error));
  step.Set("failed", failed);
  if (!e.cache.empty()) step.Set("cache", cache_changes(env, e.cache));
  if (end) step.Set("died", failure(0, *end));
  f.Call({step});
}

Request to_request(const Napi::Value& value) {
  Napi::Object o = object(value, "request");
  Request r;
  r.key = count32(o, "key");
  r.prompt = token_ids(o.Get("prompt"), "prompt");
  Napi::Array choices = array(o, "choices");
  for (uint32_t i = 0; i < choices.Length(); i++) {
    Napi::Object c = object(choices[i], "choice");
    r.choices.push_back({count32(c, "index"), token_ids(c.Get("generated"), "generated")});
  }
  Napi::Object s = object(o.Get("sampling"), "sampling");
  r.sampling.temperature = static_cast<float>(number(s, "temperature"));
  r.sampling.top_k = count32(s, "topK");
  r.sampling.top_p = static_cast<float>(number(s, "topP"));
  r.sampling.min_p = static_cast<float>(number(s, "minP"));
  r.sampling.frequency_penalty = static_cast<float>(number(s, "frequencyPenalty"));
  r.sampling.presence_penalty = static_cast<float>(number(s, "presencePenalty"));
  r.sampling.repetition_penalty = static_cast<float>(number(s, "repetitionPenalty"));
  r.sampling.seed = count(s, "seed", 9007199254740991.0);
  Napi::Array bias = array(s, "logitBias");
  for (uint32_t i = 0; i < bias.Length(); i++) {
    Napi::Object pair = object(bias[i], "logitBias");
    const double id = pair.Get(0u).ToNumber();
    r.sampling.logit_bias.emplace_back(id >= 0 && id < 2147483648.0 ? static_cast<int32_t>(id) : -1,
                                       pair.Get(1u).ToNumber().FloatValue());
  }
  if (s.Has("grammar")) r.sampling.grammar = text(s, "grammar");
  r.max_tokens = count32(o, "maxTokens");
  r.min_tokens = count32(o, "minTokens");
  r.ignore_eos = flag(o, "ignoreEos");
  r.logprobs = static_cast<int32_t>(number(o, "logprobs"));
  r.cache_salt = text(o, "cacheSalt");
  return r;
}

PoolDesc to_pool(const Napi::Value& value) {
  Napi::Object o = object(value, "pool");
  return {text(o, "owner"), count(o, "epoch", 9007199254740991.0), static_cast<int>(count(o, "pid", 2147483647)),
          static_cast<int>(count(o, "fd", 2147483647)), count(o, "bytes", 9007199254740991.0)};
}

// Blocks cross as a Float64Array of (index, tokens, offset, bytes) and a BigUint64Array of (checksum, hash). They come from another
// process: a number out of range becomes the largest, which no check of the engine lets through.
std::vector<BlockDesc> to_blocks(const Napi::Value& numbers, const Napi::Value& hashes) {
  auto is = [](const Napi::Value& v, napi_typedarray_type type) {
    return v.IsTypedArray() && v.As<Napi::TypedArray>().TypedArrayType() == type;
  };
  if (!is(numbers, napi_float64_array) || !is(hashes, napi_biguint64_array))
    throw Napi::TypeError::New(numbers.Env(), "blocks must be a Float64Array and a BigUint64Array");
  auto n = numbers.As<Napi::Float64Array>();
  auto h = hashes.As<Napi::BigUint64Array>();
  std::vector<BlockDesc> blocks(n.ElementLength() / 4);
  if (n.ElementLength() % 4 != 0 || h.ElementLength() != 2 * blocks.size())
    throw Napi::TypeError::New(numbers.Env(), "hashes do not fit the blocks");
  for (size_t i = 0; i < blocks.size(); i++)
    blocks[i] = {saturated<uint32_t>(n[4 * i]),     saturated<uint32_t>(n[4 * i + 1]), saturated<uint64_t>(n[4 * i + 2]),
                 saturated<uint32_t>(n[4 * i + 3]), h[2 * i],                          h[2 * i + 1]};
  return blocks;
}

struct Created {
  std::unique_ptr<Engine> engine;
  std::shared_ptr<Model> model;
};

class EngineWrap final : public Napi::ObjectWrap<EngineWrap> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(
        env, "Engine",
        {InstanceAccessor<&EngineWrap::facts>("facts"), InstanceMethod<&EngineWrap::start>("start"),
         InstanceMethod<&EngineWrap::generate>("generate"), InstanceMethod<&EngineWrap::prefill>("prefill"),
         InstanceMethod<&EngineWrap::reserve>("reserve"), InstanceMethod<&EngineWrap::lend>("lend"),
         InstanceMethod<&EngineWrap::pull>("pull"),
         InstanceMethod<&EngineWrap::commit>("commit"), InstanceMethod<&EngineWrap::cancel>("cancel"),
         InstanceMethod<&EngineWrap::release>("release"), InstanceMethod<&EngineWrap::load>("load"),
         InstanceMethod<&EngineWrap::cpu>("cpu"), InstanceMethod<&EngineWrap::stop>("stop")});
  }

  // Only createEngine makes one: the argument is an External that holds the engine.
  explicit EngineWrap(const Napi::CallbackInfo& info) : ObjectWrap(info) {
    if (!info[0].IsExternal()) throw Napi::TypeError::New(info.Env(), "use createEngine");
    auto* created = info[0].As<Napi::External<Created>>().Data();
    engine_ = std::move(created->engine);
    model_ = std::move(created->model);
    hook();
  }
  ~EngineWrap() override { shut(false); }

 private:
  // A process that ends without stop() must still join the thread before the environment goes.
  void hook() { napi_add_env_cleanup_hook(Env(), &EngineWrap::on_exit, this); }
  void unhook() { napi_remove_env_cleanup_hook(Env(), &EngineWrap::on_exit, this); }
  static void on_exit(void* self) { static_cast<EngineWrap*>(self)->shut(true); }

  void shut(bool environment_ends) {
    if (!engine_) return;
    if (channel_) channel_->close();
    engine_.reset();
    if (environment_ends) return;  // which finalizes the thread-safe function itself
    if (channel_) channel_->to_js.Release();
    unhook();
  }

  Napi::Value facts(const Napi::CallbackInfo& info) {
    auto facts = Napi::Object::New(info.Env());
    if (!engine_) return facts;
    facts.Set("fingerprint", engine_->fingerprint());
    facts.Set("kvType", engine_->layout().kv_type());
    facts.Set("layout", engine_->layout().name());
    facts.Set("tokenBytes", static_cast<double>(engine_->layout().token_bytes()));
    facts.Set("slots", engine_->options().slots);
    facts.Set("sequenceTokens", engine_->options().sequence_tokens);
    facts.Set("vocabTokens", model_->vocab_tokens);
    facts.Set("contextTokens", model_->api.llama_model_n_ctx_train(model_->handle));
    if (engine_->pool()) {
      facts.Set("poolFd", engine_->pool()->fd());
      facts.Set("poolBytes", static_cast<double>(engine_->pool()->bytes()));
    }
    return facts;
  }

  // start(onStep: (step) => void)
  Napi::Value start(const Napi::CallbackInfo& info) {
    if (!engine_ || channel_) throw Napi::Error::New(info.Env(), "the engine was started or stopped before");
    if (!info[0].IsFunction()) throw Napi::TypeError::New(info.Env(), "onStep must be a function");
    auto channel = channel_ = Channel::open(info.Env(), info[0].As<Napi::Function>());
    // Hooks run last in, first out: the thread must end before the function that it calls is finalized.
    unhook();
    hook();
    engine_->start({[channel](StepEvents&& e) { channel->add(std::move(e)); },
                    [channel](Error e) {
                      std::lock_guard<std::mutex> lock(channel->mutex);
                      channel->died = std::move(e);
                      channel->schedule();
                    }});
    return info.Env().Undefined();
  }

  Napi::Value answer(Napi::Env env, const Verdict& no) {
    if (!no) return env.Undefined();
    auto pair = Napi::Array::New(env, 2);
    pair.Set(0u, code_name(no->code));
    pair.Set(1u, no->message);
    return pair;
  }
  Napi::Value stopped(Napi::Env env) { return answer(env, Error{Code::stopped, "the engine has stopped"}); }

  Napi::Value generate(const Napi::CallbackInfo& info) {
    return engine_ ? answer(info.Env(), engine_->generate(to_request(info[0]))) : stopped(info.Env());
  }

  // lend(key)
  Napi::Value lend(const Napi::CallbackInfo& info) {
    if (!engine_) return stopped(info.Env());
    return answer(info.Env(), engine_->lend(info[0].As<Napi::Number>().Uint32Value()));
  }

  // prefill(request, haveBlocks, leaseMs, prefix?, numbers?, hashes?)
  Napi::Value prefill(const Napi::CallbackInfo& info) {
    if (!engine_) return stopped(info.Env());
    PrefixDesc prefix;
    if (info[3].IsObject()) {
      Napi::Object o = object(info[3], "prefix");
      prefix = {to_pool(o.Get("pool")), text(o, "fingerprint"), text(o, "kvType"), text(o, "layout"), to_blocks(info[4], info[5])};
    }
    return answer(info.Env(), engine_->prefill(to_request(info[0]), info[1].As<Napi::Number>().Uint32Value(),
                                               info[2].As<Napi::Number>().Uint32Value(), std::move(prefix)));
  }

  // reserve(request): number of blocks it has, or the refusal
  Napi::Value reserve(const Napi::CallbackInfo& info) {
    if (!engine_) return stopped(info.Env());
    uint32_t have = 0;
    Verdict no = engine_->reserve(to_request(info[0]), have);
    return no ? answer(info.Env(), no) : Napi::Number::New(info.Env(), have);
  }

  // pull(key, pool, numbers, hashes)
  Napi::Value pull(const Napi::CallbackInfo& info) {
    if (!engine_) return stopped(info.Env());
    return answer(info.Env(),
                  engine_->pull(info[0].As<Napi::Number>().Uint32Value(), to_pool(info[1]), to_blocks(info[2], info[3])));
  }

  // commit(key, handoff, numbers, hashes, first)
  Napi::Value commit(const Napi::CallbackInfo& info) {
    if (!engine_) return stopped(info.Env());
    Napi::Object o = object(info[1], "handoff");
    HandoffDesc h;
    h.pool = to_pool(o.Get("pool"));
    h.fingerprint = text(o, "fingerprint");
    h.kv_type = text(o, "kvType");
    h.layout = text(o, "layout");
    h.block_tokens = count32(o, "blockTokens");
    h.prompt_tokens = count32(o, "promptTokens");
    h.first_block = count32(o, "firstBlock");
    h.lease_ms = count32(o, "leaseMs");
    h.blocks = to_blocks(info[2], info[3]);
    std::vector<FirstToken> first;
    Napi::Array list = info[4].As<Napi::Array>();
    for (uint32_t i = 0; i < list.Length(); i++) {
      Napi::Object f = object(list[i], "first");
      first.push_back({count32(f, "choice"), static_cast<int32_t>(count(f, "token", 2147483647)), flag(f, "finished")});
    }
    return answer(info.Env(), engine_->commit(info[0].As<Napi::Number>().Uint32Value(), h, first));
  }

  Napi::Value cancel(const Napi::CallbackInfo& info) {
    const uint32_t key = info[0].As<Napi::Number>().Uint32Value();
    if (engine_) engine_->cancel(key);
    if (channel_) channel_->forget(key);
    return info.Env().Undefined();
  }

  Napi::Value release(const Napi::CallbackInfo& info) {
    if (engine_) engine_->release(info[0].As<Napi::Number>().Uint32Value());
    return info.Env().Undefined();
  }

  Napi::Value load(const Napi::CallbackInfo& info) {
    auto out = Napi::Object::New(info.Env());
    EngineLoad l = engine_ ? engine_->load() : EngineLoad{};
    out.Set("busySlots", l.busy_slots);
    out.Set("waiting", l.waiting);
    out.Set("usedKvBlocks", l.used_blocks);
    out.Set("cachedBlocks", l.cached_blocks);
    out.Set("exportedBlocks", l.exported_blocks);
    out.Set("steps", static_cast<double>(l.steps));
    out.Set("progress", static_cast<double>(l.progress));
    return out;
  }

  // cpu(): CPU time of the engine thread in ms, [in all, inside llama_decode]
  Napi::Value cpu(const Napi::CallbackInfo& info) {
    auto out = Napi::Array::New(info.Env(), 2);
    EngineCpu c = engine_ ? engine_->cpu() : EngineCpu{};
    out.Set(0u, static_cast<double>(c.total) / 1e6);
    out.Set(1u, static_cast<double>(c.decode) / 1e6);
    return out;
  }

  class Stop final : public Napi::AsyncWorker {
   public:
    Stop(Napi::Env env, std::unique_ptr<Engine> engine, std::shared_ptr<Model> model, std::shared_ptr<Channel> channel)
        : AsyncWorker(env),
          promise(Napi::Promise::Deferred::New(env)),
          engine_(std::move(engine)),
          model_(std::move(model)),
          channel_(std::move(channel)) {}
    void Execute() override {
      engine_.reset();
      model_.reset();
    }
    void OnOK() override {
      if (channel_) channel_->to_js.Release();
      promise.Resolve(Env().Undefined());
    }
    Napi::Promise::Deferred promise;

   private:
    std::unique_ptr<Engine> engine_;
    std::shared_ptr<Model> model_;
    std::shared_ptr<Channel> channel_;
  };

  // stop(): Promise<void>, resolved when the thread has ended and every handle is freed
  Napi::Value stop(const Napi::CallbackInfo& info) {
    if (!engine_) {
      auto done = Napi::Promise::Deferred::New(info.Env());
      done.Resolve(info.Env().Undefined());
      return done.Promise();
    }
    if (channel_) channel_->close();
    unhook();
    auto* worker = new Stop(info.Env(), std::move(engine_), std::move(model_), channel_);
    worker->Queue();
    return worker->promise.Promise();
  }

  std::unique_ptr<Engine> engine_;
  std::shared_ptr<Model> model_;
  std::shared_ptr<Channel> channel_;
};

// Loading takes up to seconds: off the event loop.
class Create final : public Napi::AsyncWorker {
 public:
  Create(Napi::Env env, Napi::Function constructor, std::string path, int gpu_layers, EngineOptions options)
      : AsyncWorker(env),
        promise(Napi::Promise::Deferred::New(env)),
        constructor_(Napi::Persistent(constructor)),
        path_(std::move(path)),
        gpu_layers_(gpu_layers),
        options_(std::move(options)) {}

  void Execute() override {
    const LlamaApi* api = llama_api();
    std::string error;
    if (!api) return SetError("loadLibrary has not been called");
    created_.model = Model::load(*api, path_, false, gpu_layers_, error);
    if (created_.model) created_.engine = Engine::create(created_.model, options_, error);
    if (created_.engine) return;
    std::string detail = take_library_error();
    SetError(detail.empty() ? error : error + " (" + detail + ")");
  }
  void OnOK() override {
    auto holder = Napi::External<Created>::New(Env(), &created_);
    promise.Resolve(constructor_.New({holder}));
  }
  void OnError(const Napi::Error& error) override { promise.Reject(error.Value()); }

  Napi::Promise::Deferred promise;

 private:
  Napi::FunctionReference constructor_;
  std::string path_;
  int gpu_layers_;
  EngineOptions options_;
  Created created_;
};

// createEngine(options): Promise<Engine>
Napi::Value create_engine(const Napi::CallbackInfo& info) {
  Napi::Object o = object(info[0], "options");
  EngineOptions options;
  options.slots = count32(o, "slots");
  options.sequence_tokens = count32(o, "sequenceTokens");
  options.prefill_chunk = count32(o, "prefillChunk");
  options.threads = count32(o, "threads");
  options.max_waiting = count32(o, "maxWaiting");
  options.cache_bytes = count(o, "cacheBytes", 9007199254740991.0);
  options.export_blocks = count32(o, "exportBlocks");
  options.owner = text(o, "owner");
  options.epoch = count(o, "epoch", 9007199254740991.0);
  options.fingerprint = text(o, "fingerprint");
  auto constructor = static_cast<Napi::FunctionReference*>(info.Data())->Value();
  auto* worker = new Create(info.Env(), constructor, text(o, "path"), flag(o, "gpu") ? 999 : 0, std::move(options));
  worker->Queue();
  return worker->promise.Promise();
}

}  // namespace

void init_engine(Napi::Env env, Napi::Object exports) {
  // Lives as long as the environment, which may end before the addon is unloaded.
  auto* constructor = new Napi::FunctionReference(Napi::Persistent(EngineWrap::define(env)));
  env.AddCleanupHook([](Napi::FunctionReference* f) { delete f; }, constructor);
  exports.Set("createEngine", Napi::Function::New(env, create_engine, "createEngine", constructor));
}
