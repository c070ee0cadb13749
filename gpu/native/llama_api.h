// Every entry point of libllama and ggml that dynact calls, in one table. The library comes with the npm platform package
// and is opened at run time; the C++ tests fill the same table with a fake. Compiled against headers of exactly its version.
#pragma once
#include <string>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "llama.h"

namespace dynact {

#define DYNACT_LLAMA_SYMBOLS(X) \
  X(llama_version)              \
  X(llama_log_set)              \
  X(llama_backend_init)         \
  X(llama_model_default_params) \
  X(llama_context_default_params) \
  X(llama_model_quantize_default_params) \
  X(llama_model_load_from_file) \
  X(llama_model_free)           \
  X(llama_model_quantize)       \
  X(llama_init_from_model)      \
  X(llama_free)                 \
  X(llama_n_ctx_seq)            \
  X(llama_get_memory)           \
  X(llama_memory_clear)         \
  X(llama_memory_seq_rm)        \
  X(llama_memory_seq_cp)        \
  X(llama_memory_seq_pos_min)   \
  X(llama_memory_seq_pos_max)   \
  X(llama_state_seq_get_size)   \
  X(llama_state_seq_get_data)   \
  X(llama_state_seq_set_data)   \
  X(llama_decode)               \
  X(llama_synchronize)          \
  X(llama_get_logits_ith)       \
  X(llama_attach_threadpool)    \
  X(llama_set_n_threads)        \
  X(llama_max_parallel_sequences) \
  X(llama_model_get_vocab)      \
  X(llama_model_n_ctx_train)    \
  X(llama_model_is_recurrent)   \
  X(llama_model_is_hybrid)      \
  X(llama_model_has_encoder)    \
  X(llama_model_desc)           \
  X(llama_model_meta_val_str)   \
  X(llama_model_chat_template)  \
  X(llama_vocab_n_tokens)       \
  X(llama_vocab_is_eog)         \
  X(llama_vocab_is_control)     \
  X(llama_vocab_bos)            \
  X(llama_vocab_eos)            \
  X(llama_vocab_get_text)       \
  X(llama_vocab_get_add_bos)    \
  X(llama_sampler_init_grammar) \
  X(llama_sampler_apply)        \
  X(llama_sampler_accept)       \
  X(llama_sampler_free)         \
  X(llama_tokenize)             \
  X(llama_token_to_piece)

// From libggml and libggml-base, which libllama depends on.
#define DYNACT_GGML_SYMBOLS(X)      \
  X(ggml_backend_load_all_from_path) \
  X(ggml_backend_dev_count)         \
  X(ggml_backend_dev_get)           \
  X(ggml_backend_dev_type)          \
  X(ggml_backend_dev_name)          \
  X(ggml_backend_dev_description)   \
  X(ggml_backend_reg_by_name)       \
  X(ggml_backend_reg_get_proc_address) \
  X(ggml_threadpool_params_default) \
  X(ggml_threadpool_params_match)

struct LlamaApi {
#define X(name) decltype(&::name) name = nullptr;
  DYNACT_LLAMA_SYMBOLS(X)
  DYNACT_GGML_SYMBOLS(X)
#undef X
};

// Lines of the library at or above a level; set before load_llama. The sink must be thread-safe.
using LogSink = void (*)(int level, const char* text);
void set_log_sink(LogSink sink, int min_level);

// Opens libllama and its back ends from `dir` (the package's bins/<platform> folder) once per process. Null and `error` if a
// file or symbol is missing or the version or a struct size differs from the headers. Later calls must name the same folder.
const LlamaApi* load_llama(const std::string& dir, std::string& error);

// The table load_llama filled; null before.
const LlamaApi* llama_api();

}  // namespace dynact
