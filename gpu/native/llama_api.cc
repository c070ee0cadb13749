#include "llama_api.h"

#include <dirent.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#ifndef DYNACT_LLAMA_VERSION
#error "DYNACT_LLAMA_VERSION names the release whose headers are compiled in"
#endif

namespace dynact {
namespace {

std::atomic<LogSink> log_sink{nullptr};
std::atomic<int> log_level{GGML_LOG_LEVEL_WARN};

void on_log(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_CONT || level < log_level.load(std::memory_order_relaxed)) return;
  if (LogSink sink = log_sink.load()) sink(level, text);
}

// A struct returned by value is written through a hidden pointer, so a larger buffer shows how many bytes the library
// believes the struct has: all of ours must be touched and none of the guard.
template <class T>
bool same_size(T (*defaults)(), std::string& error, const char* name) {
  struct Guarded {
    T value;
    unsigned char guard[256];
    // Not trivial, so the result must be constructed where it is wanted, never copied there.
    Guarded(const Guarded&) {}
    ~Guarded() {}
  };
  auto probe = reinterpret_cast<Guarded (*)()>(reinterpret_cast<void (*)()>(defaults));
  // Twice over different fills: a byte that changes with the fill was not written.
  alignas(Guarded) unsigned char raw[2][sizeof(Guarded)];
  for (int i = 0; i < 2; i++) {
    std::memset(raw[i], i ? 0x5a : 0xa5, sizeof(Guarded));
    new (raw[i]) Guarded(probe());
  }
  for (size_t i = sizeof(T); i < sizeof(Guarded); i++) {
    if (raw[0][i] != 0xa5 || raw[1][i] != 0x5a) {
      error = std::string(name) + " is larger in the library than in the headers";
      return false;
    }
  }
  // The last member of each of these structs has a defined default; padding after it may stay untouched.
  size_t last = sizeof(T);
  while (last > 0 && raw[0][last - 1] == 0xa5 && raw[1][last - 1] == 0x5a) last--;
  if (sizeof(T) - last >= alignof(T)) {
    error = std::string(name) + " is smaller in the library than in the headers";
    return false;
  }
  return true;
}

std::string find_library(const std::string& dir, const char* stem) {
  DIR* d = opendir(dir.c_str());
  if (!d) return {};
  std::string found;
  while (dirent* entry = readdir(d)) {
    std::string name = entry->d_name;
    bool shared = name.size() > 3 && name.compare(name.size() - 3, 3, ".so") == 0;
    if (shared && (name == std::string(stem) + ".so" || name.rfind(std::string(stem) + ".v", 0) == 0)) found = name;
  }
  closedir(d);
  return found.empty() ? found : dir + "/" + found;
}

bool open_all(const std::string& dir, LlamaApi& api, std::string& error) {
  // Without it an assertion in the library attaches a debugger to this process before it aborts.
  setenv("GGML_NO_BACKTRACE", "1", 1);
  void* handles[3];
  const char* stems[3] = {"libggml-base", "libggml", "libllama"};
  for (int i = 0; i < 3; i++) {
    std::string path = find_library(dir, stems[i]);
    if (path.empty()) {
      error = std::string(stems[i]) + " is not in " + dir;
      return false;
    }
    handles[i] = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!handles[i]) {
      error = dlerror();
      return false;
    }
  }
  auto find = [&](const char* name) -> void* {
    for (int i = 2; i >= 0; i--)
      if (void* symbol = dlsym(handles[i], name)) return symbol;
    error = std::string("the library has no ") + name;
    return nullptr;
  };
#define X(name) \
  if (!(api.name = reinterpret_cast<decltype(api.name)>(find(#name)))) return false;
  DYNACT_LLAMA_SYMBOLS(X)
  DYNACT_GGML_SYMBOLS(X)
#undef X
  const char* version = api.llama_version();
  const char* wanted = DYNACT_LLAMA_VERSION;
  if (std::strncmp(version, wanted, std::strlen(wanted)) != 0) {
    error = std::string("libllama is version ") + version + ", the addon was built for " + wanted;
    return false;
  }
  if (!same_size(api.llama_model_default_params, error, "llama_model_params") ||
      !same_size(api.llama_context_default_params, error, "llama_context_params") ||
      !same_size(api.llama_model_quantize_default_params, error, "llama_model_quantize_params"))
    return false;
  api.llama_log_set(on_log, nullptr);
  // Another addon of this process may have loaded the back ends already; the registry is shared.
  if (api.ggml_backend_dev_count() == 0) api.ggml_backend_load_all_from_path(dir.c_str());
  if (api.ggml_backend_dev_count() == 0) {
    error = "no compute back end could be loaded from " + dir;
    return false;
  }
  api.llama_backend_init();
  return true;
}

std::mutex load_mutex;
std::atomic<const LlamaApi*> loaded{nullptr};
std::string loaded_dir;

}  // namespace

void set_log_sink(LogSink sink, int min_level) {
  log_level = min_level;
  log_sink = sink;
}

const LlamaApi* load_llama(const std::string& dir, std::string& error) {
  std::lock_guard<std::mutex> lock(load_mutex);
  if (const LlamaApi* api = loaded) {
    if (dir == loaded_dir) return api;
    error = "libllama is already loaded from " + loaded_dir;
    return nullptr;
  }
  auto* api = new LlamaApi;  // lives as long as the process: libraries are never unloaded
  if (!open_all(dir, *api, error)) {
    delete api;
    return nullptr;
  }
  loaded_dir = dir;
  loaded = api;
  return api;
}

const LlamaApi* llama_api() { return loaded; }

}  // namespace dynact
