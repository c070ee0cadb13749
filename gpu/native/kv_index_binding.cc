// JavaScript's view of the KV index. Arguments are checked by gpu/kv-index.ts; what is checked again here could corrupt memory.
#include <napi.h>

#include <algorithm>
#include <memory>

#include "binding.h"
#include "kv_index.h"

namespace {

class Index final : public Napi::ObjectWrap<Index> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "KvIndex",
                       {InstanceMethod<&Index::open>("open"), InstanceMethod<&Index::close>("close"), InstanceMethod<&Index::store>("store"),
                        InstanceMethod<&Index::remove>("remove"), InstanceMethod<&Index::answer_in>("answerIn"),
                        InstanceMethod<&Index::find>("find"), InstanceMethod<&Index::blocks>("blocks"), InstanceMethod<&Index::stats>("stats")});
  }

  // new KvIndex(maxBytes: number)
  explicit Index(const Napi::CallbackInfo& info)
      : ObjectWrap(info), index_(static_cast<size_t>(info[0].As<Napi::Number>().Int64Value())) {}

 private:
  static uint32_t u32(const Napi::Value& value) { return value.As<Napi::Number>().Uint32Value(); }

  uint32_t slot(const Napi::CallbackInfo& info) const {
    const uint32_t number = u32(info[0]);
    if (!index_.is_open(number)) throw Napi::RangeError::New(info.Env(), "no such worker");
    return number;
  }

  static uint32_t tier(const Napi::CallbackInfo& info) {
    const uint32_t number = u32(info[1]);
    if (number >= dynact::kTiers) throw Napi::RangeError::New(info.Env(), "no such tier");
    return number;
  }

  template <class T>
  struct Span {
    T* data;
    size_t count;
  };
  // One call into Node instead of the four that the wrapper makes: a lookup takes no longer than these.
  template <class T>
  static Span<T> span(const Napi::CallbackInfo& info, size_t at, napi_typedarray_type wanted) {
    napi_typedarray_type type;
    size_t count = 0;
    void* data = nullptr;
    if (napi_get_typedarray_info(info.Env(), info[at], &type, &count, &data, nullptr, nullptr) != napi_ok || type != wanted)
      throw Napi::TypeError::New(info.Env(), wanted == napi_biguint64_array ? "hashes must be a BigUint64Array" : "rows must be a Uint32Array");
    return {static_cast<T*>(data), count};
  }
  static Span<const uint64_t> hashes(const Napi::CallbackInfo& info, size_t at) {
    const auto found = span<uint64_t>(info, at, napi_biguint64_array);
    return {found.data, found.count};
  }

  // open(): number, -1 when all are taken
  Napi::Value open(const Napi::CallbackInfo& info) {
    const uint32_t number = index_.open();
    return Napi::Number::New(info.Env(), number == dynact::KvIndex::kMostWorkers ? -1 : static_cast<double>(number));
  }

  // close(slot: number)
  void close(const Napi::CallbackInfo& info) { index_.close(slot(info)); }

  // store(slot: number, tier: number, hashes: BigUint64Array, now: number, expires: number)
  void store(const Napi::CallbackInfo& info) {
    const auto given = hashes(info, 2);
    index_.store(slot(info), tier(info), given.data, given.count, u32(info[3]), u32(info[4]));
  }

  // remove(slot: number, tier: number, hashes: BigUint64Array)
  void remove(const Napi::CallbackInfo& info) {
    const auto given = hashes(info, 2);
    index_.remove(slot(info), tier(info), given.data, given.count);
  }

  // answerIn(rows: Uint32Array): where answers go from now on. Told once, for asking Node where an array lies takes longer than a lookup.
  void answer_in(const Napi::CallbackInfo& info) {
    rows_ = span<uint32_t>(info, 0, napi_uint32_array);
    owner_ = Napi::Persistent(info[0].As<Napi::Object>());
  }

  // find(hashes: BigUint64Array, now: number): number. Fills in [slot, device, host, disk] for as many workers as there is room for;
  // returns how many there are.
  Napi::Value find(const Napi::CallbackInfo& info) {
    const auto given = hashes(info, 0);
    const auto& found = index_.find(given.data, given.count, u32(info[1]));
    const size_t width = 1 + dynact::kTiers;
    uint32_t* row = rows_.data;
    const size_t fit = std::min(found.size(), rows_.count / width);
    for (size_t i = 0; i < fit; i++, row += width) {
      row[0] = found[i].slot;
      std::copy(found[i].blocks, found[i].blocks + dynact::kTiers, row + 1);
    }
    return Napi::Number::New(info.Env(), static_cast<double>(found.size()));
  }

  // blocks(slot: number, tier: number): number
  Napi::Value blocks(const Napi::CallbackInfo& info) {
    return Napi::Number::New(info.Env(), static_cast<double>(index_.blocks(slot(info), tier(info))));
  }

  Napi::Value stats(const Napi::CallbackInfo& info) {
    const dynact::IndexStats stats = index_.stats();
    auto out = Napi::Object::New(info.Env());
    const auto set = [&](const char* name, uint64_t value) { out.Set(name, Napi::Number::New(info.Env(), static_cast<double>(value))); };
    set("nodes", stats.nodes);
    set("holders", stats.holders);
    set("bytes", stats.bytes);
    set("evicted", stats.evicted);
    set("refused", stats.refused);
    set("unknown", stats.unknown);
    set("repeated", stats.repeated);
    return out;
  }

  dynact::KvIndex index_;
  Span<uint32_t> rows_{};
  Napi::ObjectReference owner_;
};

}  // namespace

void init_kv_index(Napi::Env env, Napi::Object exports) { exports.Set("KvIndex", Index::define(env)); }
