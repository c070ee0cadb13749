// What the binding files share: argument access that throws instead of guessing.
#pragma once
#include <napi.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace dynact {

inline double number(const Napi::Object& o, const char* name) {
  Napi::Value v = o.Get(name);
  if (!v.IsNumber()) throw Napi::TypeError::New(o.Env(), std::string(name) + " must be a number");
  return v.As<Napi::Number>().DoubleValue();
}

// Whole numbers in [0, max]; anything else is a caller's bug.
inline uint64_t count(const Napi::Object& o, const char* name, double max = 4294967295.0) {
  double v = number(o, name);
  if (!(v >= 0 && v <= max) || v != std::floor(v))
    throw Napi::RangeError::New(o.Env(), std::string(name) + " is out of range");
  return static_cast<uint64_t>(v);
}

inline uint32_t count32(const Napi::Object& o, const char* name) { return static_cast<uint32_t>(count(o, name)); }

// A number that somebody else vouches for; what is no whole number in range becomes the largest value of the type.
template <class T>
T saturated(double v) {
  const double limit = sizeof(T) > 4 ? 9007199254740991.0 : 4294967295.0;
  return v >= 0 && v <= limit && v == std::floor(v) ? static_cast<T>(v) : std::numeric_limits<T>::max();
}

inline bool flag(const Napi::Object& o, const char* name) {
  Napi::Value v = o.Get(name);
  if (!v.IsBoolean()) throw Napi::TypeError::New(o.Env(), std::string(name) + " must be a boolean");
  return v.As<Napi::Boolean>();
}

inline std::string text(const Napi::Object& o, const char* name) {
  Napi::Value v = o.Get(name);
  if (!v.IsString()) throw Napi::TypeError::New(o.Env(), std::string(name) + " must be a string");
  return v.As<Napi::String>();
}

// Ids above 2^31 become negative and fail the vocabulary check.
inline std::vector<int32_t> token_ids(const Napi::Value& v, const char* name) {
  if (!v.IsTypedArray() || v.As<Napi::TypedArray>().TypedArrayType() != napi_uint32_array)
    throw Napi::TypeError::New(v.Env(), std::string(name) + " must be a Uint32Array");
  auto array = v.As<Napi::Uint32Array>();
  const uint32_t* data = array.Data();
  return std::vector<int32_t>(data, data + array.ElementLength());
}

inline Napi::Object object(const Napi::Value& v, const char* name) {
  if (!v.IsObject()) throw Napi::TypeError::New(v.Env(), std::string(name) + " must be an object");
  return v.As<Napi::Object>();
}

inline Napi::Array array(const Napi::Object& o, const char* name) {
  Napi::Value v = o.Get(name);
  if (!v.IsArray()) throw Napi::TypeError::New(o.Env(), std::string(name) + " must be an array");
  return v.As<Napi::Array>();
}

}  // namespace dynact

// Each registers its part of the addon.
void init_pool(Napi::Env env, Napi::Object exports);
void init_kv_index(Napi::Env env, Napi::Object exports);
void init_engine(Napi::Env env, Napi::Object exports);
void init_vocabulary(Napi::Env env, Napi::Object exports);
void init_weights(Napi::Env env, Napi::Object exports);
