// The addon's door: every binding file registers its part here.
#include "binding.h"

static Napi::Object init(Napi::Env env, Napi::Object exports) {
  init_pool(env, exports);
  init_kv_index(env, exports);
  init_vocabulary(env, exports);
  init_engine(env, exports);
  init_weights(env, exports);
  return exports;
}

NODE_API_MODULE(dynact, init)
