// JavaScript's view of block hashes, export pools and the fetch thread. The mock engine uses all of it; the native engine uses
// the C++ interfaces directly. Arguments are checked by gpu/kv-pool.ts; what is checked again here could corrupt memory.
#include <napi.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "binding.h"
#include "block_hash.h"
#include "kv_fetch.h"
#include "kv_pool.h"

namespace {

using dynact::BlockDesc;
using dynact::FetchResult;
using dynact::FetchStatus;

uint64_t u64(const Napi::Value& value) {
  bool lossless = false;
  return value.As<Napi::BigInt>().Uint64Value(&lossless);
}

// sequenceHashes(tokens: Uint32Array, blockTokens: number, salt: string, partial: boolean, lora: string): BigUint64Array
Napi::Value sequence_hashes(const Napi::CallbackInfo& info) {
  const auto tokens = info[0].As<Napi::Uint32Array>();
  const size_t block_tokens = info[1].As<Napi::Number>().Uint32Value();
  const std::string salt = info[2].As<Napi::String>();
  const std::string lora = info[4].As<Napi::String>();
  const auto hashes = dynact::sequence_hashes(tokens.Data(), tokens.ElementLength(), block_tokens, dynact::salted_seed(salt, lora),
                                              info[3].As<Napi::Boolean>());
  auto out = Napi::BigUint64Array::New(info.Env(), hashes.size());
  if (!hashes.empty()) std::memcpy(out.Data(), hashes.data(), hashes.size() * sizeof(uint64_t));
  return out;
}

// blockChecksum(bytes: Uint8Array, hash: bigint): bigint
Napi::Value block_checksum(const Napi::CallbackInfo& info) {
  const auto bytes = info[0].As<Napi::Uint8Array>();
  return Napi::BigInt::New(info.Env(), dynact::block_checksum(bytes.Data(), bytes.ByteLength(), u64(info[1])));
}

class Pool final : public Napi::ObjectWrap<Pool> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "KvPool",
                       {InstanceAccessor<&Pool::fd>("fd"), InstanceAccessor<&Pool::bytes>("bytes"), InstanceAccessor<&Pool::used>("used"),
                        InstanceMethod<&Pool::put>("put"), InstanceMethod<&Pool::give>("give"), InstanceMethod<&Pool::close>("close")});
  }

  // new KvPool(owner: string, epoch: number, slotBytes: number, slots: number)
  explicit Pool(const Napi::CallbackInfo& info) : ObjectWrap(info) {
    std::string error;
    pool_ = dynact::KvPool::create(info[2].As<Napi::Number>().Int64Value(), info[3].As<Napi::Number>().Int64Value(), error,
                                   info[0].As<Napi::String>().Utf8Value(), info[1].As<Napi::Number>().Int64Value());
    if (pool_ == nullptr) Napi::Error::New(info.Env(), error).ThrowAsJavaScriptException();
  }

 private:
  Napi::Value fd(const Napi::CallbackInfo& info) { return Napi::Number::New(info.Env(), pool_ ? pool_->fd() : -1); }
  Napi::Value bytes(const Napi::CallbackInfo& info) { return Napi::Number::New(info.Env(), pool_ ? static_cast<double>(pool_->bytes()) : 0); }
  Napi::Value used(const Napi::CallbackInfo& info) { return Napi::Number::New(info.Env(), pool_ ? static_cast<double>(pool_->used()) : 0); }

  // put(bytes: Uint8Array, hash: bigint): [offset: number, checksum: bigint] | undefined
  Napi::Value put(const Napi::CallbackInfo& info) {
    const auto bytes = info[0].As<Napi::Uint8Array>();
    if (pool_ == nullptr || bytes.ByteLength() == 0 || bytes.ByteLength() > pool_->slot_bytes()) return info.Env().Undefined();
    const int64_t offset = pool_->take();
    if (offset < 0) return info.Env().Undefined();
    std::memcpy(pool_->at(offset), bytes.Data(), bytes.ByteLength());
    auto out = Napi::Array::New(info.Env(), 2);
    out[0u] = Napi::Number::New(info.Env(), static_cast<double>(offset));
    out[1u] = Napi::BigInt::New(info.Env(), dynact::block_checksum(bytes.Data(), bytes.ByteLength(), u64(info[1])));
    return out;
  }

  Napi::Value give(const Napi::CallbackInfo& info) {
    const int64_t offset = info[0].As<Napi::Number>().Int64Value();
    return Napi::Boolean::New(info.Env(), pool_ != nullptr && offset >= 0 && pool_->give(static_cast<uint64_t>(offset)));
  }

  void close(const Napi::CallbackInfo&) { pool_.reset(); }

  std::unique_ptr<dynact::KvPool> pool_;
};

const char* name_of(FetchStatus status) {
  switch (status) {
    case FetchStatus::ok: return "ok";
    case FetchStatus::gone: return "gone";
    case FetchStatus::mismatch: return "mismatch";
    case FetchStatus::stopped: return "stopped";
  }
  return "gone";
}

class Fetcher final : public Napi::ObjectWrap<Fetcher> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "KvFetcher",
                       {InstanceMethod<&Fetcher::fetch>("fetch"), InstanceMethod<&Fetcher::forget>("forget"), InstanceMethod<&Fetcher::idle>("idle"),
                        InstanceMethod<&Fetcher::close>("close")});
  }

  // new KvFetcher(done: (job: number, status: string, message: string, copies: Uint8Array[]) => void)
  explicit Fetcher(const Napi::CallbackInfo& info) : ObjectWrap(info) {
    // Unlimited: the fetcher's own queue is the bound.
    done_ = Napi::ThreadSafeFunction::New(info.Env(), info[0].As<Napi::Function>(), "dynact kv fetch", 0, 1);
    done_.Unref(info.Env());
    fetcher_ = dynact::KvFetcher::create();
    // Runs before Node finalizes the thread-safe function, for hooks run last in, first out: the thread must not outlive it.
    napi_add_env_cleanup_hook(info.Env(), &Fetcher::on_exit, this);
  }

  ~Fetcher() override { shut(); }

 private:
  static void on_exit(void* self) { static_cast<Fetcher*>(self)->shut(false); }

  // fetch(job: number, owner: string, epoch: number, pid: number, fd: number, bytes: number,
  //       numbers: Float64Array (index, tokens, offset, bytes per block), hashes: BigUint64Array (checksum, hash per block)): boolean
  Napi::Value fetch(const Napi::CallbackInfo& info) {
    if (fetcher_ == nullptr) return Napi::Boolean::New(info.Env(), false);
    const uint32_t job = info[0].As<Napi::Number>().Uint32Value();
    dynact::PoolDesc pool;
    pool.owner = info[1].As<Napi::String>().Utf8Value();
    pool.epoch = info[2].As<Napi::Number>().Int64Value();
    pool.pid = info[3].As<Napi::Number>().Int32Value();
    pool.fd = info[4].As<Napi::Number>().Int32Value();
    pool.bytes = info[5].As<Napi::Number>().Int64Value();
    const auto numbers = info[6].As<Napi::Float64Array>();
    const auto hashes = info[7].As<Napi::BigUint64Array>();
    std::vector<BlockDesc> blocks(std::min(numbers.ElementLength() / 4, hashes.ElementLength() / 2));
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].index = dynact::saturated<uint32_t>(numbers[i * 4]);
      blocks[i].tokens = dynact::saturated<uint32_t>(numbers[i * 4 + 1]);
      blocks[i].offset = dynact::saturated<uint64_t>(numbers[i * 4 + 2]);
      blocks[i].bytes = dynact::saturated<uint32_t>(numbers[i * 4 + 3]);
      blocks[i].checksum = hashes[i * 2];
      blocks[i].hash = hashes[i * 2 + 1];
    }
    auto fetched = std::make_shared<Fetched>();
    fetched->job = job;
    const auto copy = [fetched](const BlockDesc& block, const uint8_t* from) {
      fetched->copies.emplace_back(from, from + block.bytes);
      return dynact::block_checksum(fetched->copies.back().data(), block.bytes, block.hash);
    };
    const bool queued = fetcher_->fetch(std::move(pool), std::move(blocks), copy, [done = done_, fetched](FetchResult&& result) mutable {
      fetched->result = std::move(result);
      if (fetched->result.status != FetchStatus::ok) fetched->copies.clear();
      auto* given = new std::shared_ptr<Fetched>(fetched);
      if (done.NonBlockingCall(given, deliver) != napi_ok) delete given;
    });
    // While a copy is under way the process must live to hear of it.
    if (queued) done_.Ref(info.Env());
    return Napi::Boolean::New(info.Env(), queued);
  }

  struct Fetched {
    uint32_t job = 0;
    FetchResult result;
    std::vector<std::vector<uint8_t>> copies;
  };

  static void deliver(Napi::Env env, Napi::Function callback, std::shared_ptr<Fetched>* given) {
    const std::unique_ptr<std::shared_ptr<Fetched>> owned(given);
    if (static_cast<napi_env>(env) == nullptr) return;
    const Fetched& got = **owned;
    auto copies = Napi::Array::New(env, got.copies.size());
    for (size_t i = 0; i < got.copies.size(); ++i) {
      auto copy = Napi::Uint8Array::New(env, got.copies[i].size());
      std::memcpy(copy.Data(), got.copies[i].data(), got.copies[i].size());
      copies[static_cast<uint32_t>(i)] = copy;
    }
    callback.Call({Napi::Number::New(env, got.job), Napi::String::New(env, name_of(got.result.status)),
                   Napi::String::New(env, got.result.message), copies});
  }

  // No job is open: the process may end.
  void idle(const Napi::CallbackInfo& info) {
    if (fetcher_ != nullptr) done_.Unref(info.Env());
  }

  void forget(const Napi::CallbackInfo& info) {
    if (fetcher_ != nullptr) fetcher_->forget(info[0].As<Napi::String>());
  }

  void close(const Napi::CallbackInfo&) { shut(); }

  void shut(bool unhook = true) {
    if (fetcher_ == nullptr) return;
    fetcher_.reset();
    done_.Release();
    if (unhook) napi_remove_env_cleanup_hook(Env(), &Fetcher::on_exit, this);
  }

  Napi::ThreadSafeFunction done_;
  std::unique_ptr<dynact::KvFetcher> fetcher_;
};

}  // namespace

void init_pool(Napi::Env env, Napi::Object exports) {
  exports.Set("sequenceHashes", Napi::Function::New<sequence_hashes>(env, "sequenceHashes"));
  exports.Set("blockChecksum", Napi::Function::New<block_checksum>(env, "blockChecksum"));
  exports.Set("KvPool", Pool::define(env));
  exports.Set("KvFetcher", Fetcher::define(env));
}
