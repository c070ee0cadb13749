#include "engine.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "block_hash.h"

namespace dynact {
namespace {

constexpr uint32_t kMaxRows = 512;
// Generated tokens are recomputed in calls below the 64 rows at which the attention kernel changes.
constexpr uint32_t kReplayRows = 63;
// KV cells that a call with one row reads as one piece, however many threads there are.
constexpr int32_t kWholeCells = 256;

uint64_t thread_cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

uint32_t blocks_of(uint32_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace

Engine::Engine(std::shared_ptr<Model> model, EngineOptions options)
    : model_(std::move(model)),
      api_(model_->api),
      options_(std::move(options)),
      free_slots_(options_.slots),
      owners_(options_.slots, nullptr),
      sampler_(static_cast<size_t>(model_->vocab_tokens)),
      batch_token_(kMaxRows),
      batch_pos_(kMaxRows),
      batch_n_seq_(kMaxRows, 1),
      batch_seq_(kMaxRows),
      batch_seq_ptr_(kMaxRows),
      batch_out_(kMaxRows) {
  for (uint32_t i = 0; i < kMaxRows; i++) batch_seq_ptr_[i] = &batch_seq_[i];
  batch_.token = batch_token_.data();
  batch_.pos = batch_pos_.data();
  batch_.n_seq_id = batch_n_seq_.data();
  batch_.seq_id = batch_seq_ptr_.data();
  batch_.logits = batch_out_.data();
}

std::unique_ptr<Engine> Engine::create(std::shared_ptr<Model> model, EngineOptions options, std::string& error) {
  options.sequence_tokens = (options.sequence_tokens + 255) / 256 * 256;
  if (options.slots == 0 || options.slots > model->api.llama_max_parallel_sequences() || options.slots > kMaxRows)
    error = "slots must be 1 to " + std::to_string(model->api.llama_max_parallel_sequences());
  else if (options.prefill_chunk == 0 || options.prefill_chunk % kBlockTokens || options.prefill_chunk > kMaxRows)
    error = "the prefill chunk must be a multiple of 64, at most 512";
  else if (options.sequence_tokens > (1u << 20) || uint64_t{options.sequence_tokens} * options.slots > (1u << 26))
    error = "slots times sequence tokens is more than this engine can address";
  else if (options.threads == 0 || options.threads > 256)
    error = "threads must be 1 to 256";
  else {
    std::unique_ptr<Engine> engine(new Engine(std::move(model), std::move(options)));
    if (engine->open(error)) return engine;
  }
  return nullptr;
}

bool Engine::open(std::string& error) {
  llama_context_params params = api_.llama_context_default_params();
  params.n_ctx = options_.slots * options_.sequence_tokens;
  params.n_batch = params.n_ubatch = kMaxRows;
  params.n_seq_max = options_.slots;
  params.n_outputs_max = options_.slots;
  params.n_threads = params.n_threads_batch = static_cast<int32_t>(options_.threads);
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.type_k = params.type_v = GGML_TYPE_F16;
  params.kv_unified = false;
  params.no_perf = true;
  // Asked before each operation of a decode call: a long one is seen to go on by it.
  params.abort_callback = [](void* data) {
    auto self = static_cast<Engine*>(data);
    self->computed_.fetch_add(1, std::memory_order_relaxed);
    return self->stopping_.load(std::memory_order_relaxed);
  };
  params.abort_callback_data = this;
  context_ = api_.llama_init_from_model(model_->handle, params);
  if (!context_) {
    error = "libllama could not create a context of " + std::to_string(options_.slots) + " × " +
            std::to_string(options_.sequence_tokens) + " tokens (memory?)";
    return false;
  }
  if (api_.llama_n_ctx_seq(context_) < options_.sequence_tokens) {
    error = "libllama gave fewer tokens per sequence than asked for";
    return false;
  }
  cells_ = static_cast<int32_t>(api_.llama_n_ctx_seq(context_));
  if (int32_t trained = api_.llama_model_n_ctx_train(model_->handle); trained > 0)
    options_.sequence_tokens = std::min(options_.sequence_tokens, static_cast<uint32_t>(trained));
  memory_ = api_.llama_get_memory(context_);
  if (options_.threads > 1) {
    // Threads that wait for a core while others spin for them take many times as long, so a pool must soon sleep. The least that the library
    // knows is about 2 ms of spinning: it outlasts the pause between two steps, and waking a sleeper at each step costs a tenth of it.
    auto reg = api_.ggml_backend_reg_by_name("CPU");
    auto make = reg ? reinterpret_cast<ggml_threadpool* (*)(ggml_threadpool_params*)>(
                          api_.ggml_backend_reg_get_proc_address(reg, "ggml_threadpool_new"))
                    : nullptr;
    threadpool_free_ = reg ? reinterpret_cast<void (*)(ggml_threadpool*)>(
                                 api_.ggml_backend_reg_get_proc_address(reg, "ggml_threadpool_free"))
                           : nullptr;
    if (make && threadpool_free_) {
      ggml_threadpool_params pool = api_.ggml_threadpool_params_default(static_cast<int>(options_.threads));
      pool.poll = 1;
      threadpool_ = make(&pool);
      if (threadpool_) api_.llama_attach_threadpool(context_, threadpool_, threadpool_);
    }
  }
  if (!learn_layout(error)) return false;
  options_.fingerprint += std::string("/") + api_.llama_version() + "/" + layout_.kv_type() + "-fa";
  cache_ = std::make_unique<PrefixCache>(layout_.token_bytes() * kBlockTokens, options_.cache_bytes);
  // The engine thread's own, and some for arrivals: they stay resident, so more at a time come from the system and go back.
  blobs_ = HostArena::create(layout_.blob_bytes(options_.sequence_tokens), 1 + std::min<size_t>(options_.slots, 4));
  state_ = blobs_->take();
  if (options_.export_blocks > 0) {
    pool_ = KvPool::create(layout_.token_bytes() * kBlockTokens, options_.export_blocks, error, options_.owner, options_.epoch);
    if (!pool_) return false;
  }
  fetcher_ = KvFetcher::create();
  return true;
}

// The library itself says what a sequence's state looks like: compute one token and look.
bool Engine::learn_layout(std::string& error) {
  int32_t token = api_.llama_vocab_bos(model_->vocab);
  if (token < 0 || token >= model_->vocab_tokens) token = 0;
  batch_.n_tokens = 0;
  row(token, 0, 0, true);
  if (decode() != 0) {
    error = "the model cannot be evaluated";
    return false;
  }
  std::vector<uint8_t> state(api_.llama_state_seq_get_size(context_, 0));
  size_t size = api_.llama_state_seq_get_data(context_, state.data(), state.size(), 0);
  bool good = layout_.learn(state.data(), size, options_.slots, 1, error) && layout_.check(state.data(), size, 1, error);
  api_.llama_memory_seq_rm(memory_, 0, -1, -1);
  steps_ = 0;
  cpu_decode_ = 0;
  return good;
}

Engine::~Engine() {
  stop();
  fetcher_.reset();
  reservations_.clear();
  pool_.reset();
  if (context_) {
    if (threadpool_) {
      api_.llama_attach_threadpool(context_, nullptr, nullptr);
    }
    api_.llama_free(context_);
  }
  if (threadpool_) threadpool_free_(threadpool_);
}

// ---- admission ----

Verdict Engine::validate(const Request& r) const {
  auto bad = [](std::string text) { return Verdict(Error{Code::bad_request, std::move(text)}); };
  auto in_vocabulary = [&](int32_t token) { return token >= 0 && token < model_->vocab_tokens; };
  if (r.key == 0) return bad("key 0");
  if (r.prompt.empty()) return bad("the prompt is empty");
  if (r.choices.empty()) return bad("no choices");
  if (r.choices.size() > options_.slots) return bad("more choices than the engine has slots");
  if (r.max_tokens == 0) return bad("max tokens is 0");
  if (r.logprobs < -1 || r.logprobs > 20) return bad("logprobs out of range");
  const Sampling& s = r.sampling;
  for (float v : {s.temperature, s.top_p, s.min_p, s.frequency_penalty, s.presence_penalty, s.repetition_penalty})
    if (!std::isfinite(v)) return bad("a sampling parameter is not finite");
  if (s.temperature < 0 || s.top_p <= 0 || s.min_p < 0 || s.min_p > 1 || s.repetition_penalty <= 0)
    return bad("a sampling parameter is out of range");
  for (int32_t token : r.prompt)
    if (!in_vocabulary(token)) return bad("token " + std::to_string(token) + " is not in the vocabulary");
  for (const auto& [token, bias] : s.logit_bias)
    if (!in_vocabulary(token) || !std::isfinite(bias)) return bad("logit bias of a token that is not in the vocabulary");
  size_t longest = 0;
  for (size_t i = 0; i < r.choices.size(); i++) {
    const ChoiceSpec& c = r.choices[i];
    for (size_t j = 0; j < i; j++)
      if (r.choices[j].index == c.index) return bad("two choices have the same index");
    if (c.generated.size() >= r.max_tokens) return bad("a choice already has max tokens");
    for (int32_t token : c.generated)
      if (!in_vocabulary(token)) return bad("generated token " + std::to_string(token) + " is not in the vocabulary");
    longest = std::max(longest, c.generated.size());
  }
  if (r.prompt.size() + longest > options_.sequence_tokens)
    return Error{Code::too_long, std::to_string(r.prompt.size() + longest) + " tokens, a sequence holds " +
                                     std::to_string(options_.sequence_tokens)};
  return {};
}

Verdict Engine::admit(const Request& r) {
  if (stopping_ || dead_) return Error{Code::stopped, "the engine has stopped"};
  if (keys_.count(r.key)) return Error{Code::bad_request, "key " + std::to_string(r.key) + " is in use"};
  if (waiting_ >= options_.max_waiting + free_slots_) return Error{Code::full, "the engine's queue is full"};
  return {};
}

// The requests that were here first keep their claim on free slots.
Verdict Engine::admit_held(const Request& r) {
  if (Verdict no = admit(r)) return no;
  if (free_slots_ < waiting_slots_ + r.choices.size()) return Error{Code::full, "no free slot"};
  return {};
}

void Engine::post(std::function<void()> command) {
  inbox_.push_back(std::move(command));
  wake_.notify_one();
}

void Engine::look() {
  look_ = true;
  wake_.notify_one();
}

Verdict Engine::enqueue(std::unique_ptr<Job> job, const PrefixDesc& prefix) {
  auto box = std::make_shared<std::unique_ptr<Job>>(std::move(job));
  const Job& j = **box;
  const uint32_t key = j.request.key, slots = j.held_slots, promised = j.promised;
  std::function<void()> command = [this, box, key, slots, promised] {
    Job* raw = box->get();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      // Cancelled while it waited for a peer's blocks: nothing else knows of it yet.
      if (keys_[key].cancelled) {
        promised_ -= promised;
        waiting_--;
        waiting_slots_ -= slots;
        keys_.erase(key);
        return;
      }
    }
    raw->order = ++orders_;
    queue_.push_back(raw);
    jobs_[key] = std::move(*box);
  };
  std::unique_lock<std::mutex> lock(mutex_);
  if (Verdict no = admit(j.request)) return no;
  if (promised_ + promised > options_.export_blocks)
    return Error{Code::pool_full, std::to_string(promised) + " blocks to export, " +
                                      std::to_string(options_.export_blocks - promised_) + " free"};
  keys_[key] = {};
  try {
    const bool waits = !prefix.blocks.empty() && borrow(prefix, j, command);
    if (!waits) post(std::move(command));
  } catch (...) {
    keys_.erase(key);
    throw;
  }
  promised_ += promised;
  waiting_++;
  waiting_slots_ += slots;
  return {};
}

Verdict Engine::generate(Request request) {
  return guarded([&]() -> Verdict {
    if (Verdict no = validate(request)) return no;
    auto job = std::make_unique<Job>();
    job->kind = Kind::generate;
    job->hashes = sequence_hashes(reinterpret_cast<const uint32_t*>(request.prompt.data()), request.prompt.size(), kBlockTokens,
                                  salted_seed(request.cache_salt), false);
    job->held_slots = static_cast<uint32_t>(request.choices.size());
    job->request = std::move(request);
    return enqueue(std::move(job));
  });
}

Verdict Engine::prefill(Request request, uint32_t have_blocks, uint32_t lease_ms, PrefixDesc prefix) {
  return guarded([&]() -> Verdict {
    if (Verdict no = validate(request)) return no;
    if (!pool_) return Error{Code::pool_full, "this engine exports no KV"};
    const uint32_t blocks = blocks_of(static_cast<uint32_t>(request.prompt.size()));
    const uint32_t whole = static_cast<uint32_t>(request.prompt.size()) / kBlockTokens;
    if (have_blocks > whole) return Error{Code::bad_request, "the receiver claims more blocks than the prompt has"};
    if (lease_ms == 0) return Error{Code::bad_request, "a lease of 0 ms"};
    auto job = std::make_unique<Job>();
    job->kind = Kind::prefill;
    job->hashes = sequence_hashes(reinterpret_cast<const uint32_t*>(request.prompt.data()), request.prompt.size(), kBlockTokens,
                                  salted_seed(request.cache_salt), true);
    job->held_slots = 1;
    job->have_blocks = job->next_export = have_blocks;
    job->lease_ms = lease_ms;
    job->promised = blocks - have_blocks;
    job->request = std::move(request);
    return enqueue(std::move(job), prefix);
  });
}

void Engine::cancel(uint32_t key) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto known = keys_.find(key);
  if (known == keys_.end() || known->second.cancelled) return;
  if (reservations_.count(key)) {
    drop_reservation(key);
    keys_.erase(key);
    return;
  }
  post([this, key] { cancel_on_thread(key); });
  known->second.cancelled = true;
}

void Engine::release(uint32_t key) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!keys_.count(key)) return;
  post([this, key] { drop_export(key); });
}

EngineLoad Engine::load() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {options_.slots - free_slots_, waiting_,          used_blocks_.load(), static_cast<uint32_t>(cache_->blocks()),
          exported_blocks_.load(),      steps_.load(), steps_.load() + computed_.load(std::memory_order_relaxed)};
}

// ---- the loop ----

void Engine::start(EngineSink sink) {
  sink_ = std::move(sink);
  thread_ = std::thread([this] { run(); });
}

void Engine::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Engine::run() {
  try {
    while (!stopping_) {
      if (!turn()) wait();
      cpu_total_.store(thread_cpu_ns(), std::memory_order_relaxed);
    }
  } catch (const std::exception& e) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      dead_ = true;
    }
    sink_.died(Error{Code::stopped, std::string("the engine thread ended: ") + e.what()});
  }
}

bool Engine::turn() {
  std::vector<std::function<void()>> commands;
  bool worked;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    commands.swap(inbox_);
    worked = look_ || !commands.empty();
    look_ = false;
  }
  for (auto& command : commands) command();
  const auto now = Clock::now();
  settle_reservations(now);
  expire(now);
  for (Sequence* s : owners_) {
    if (!s || !s->decoding) continue;
    decode_call();
    worked = true;
    break;
  }
  publish();
  if (stopping_) return worked;
  // As many short prompts as one chunk may have rows: those that arrive together make one pause in decoding, not one each.
  for (uint32_t rows = 0; rows < options_.prefill_chunk && !stopping_ && (current_ || start_next());) {
    if (current_->replay.empty()) prompt_call();
    else replay_call();
    rows += static_cast<uint32_t>(batch_.n_tokens);
    worked = true;
    publish();
  }
  return worked;
}

void Engine::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  auto until = Clock::now() + std::chrono::seconds(3600);
  for (const auto& [key, held] : exports_) until = std::min(until, held.deadline);
  for (const auto& [key, r] : reservations_)
    if (r->committing) until = std::min(until, r->deadline);
  wake_.wait_until(lock, until, [this] { return !inbox_.empty() || look_ || stopping_; });
}

// Cancelled requests are silent from the moment `cancel` returns; the sink is called under the lock so that holds for it too, and a
// key outlives its last events.
void Engine::publish() {
  uint32_t used = 0;
  for (const Sequence* s : owners_) used += s ? blocks_of(s->kv) : 0;
  used_blocks_ = used;
  events_.cache = cache_->changes();
  std::lock_guard<std::mutex> lock(mutex_);
  auto cancelled = [&](uint32_t key) {
    auto known = keys_.find(key);
    return known != keys_.end() && known->second.cancelled;
  };
  auto drop = [&](auto& list) {
    list.erase(std::remove_if(list.begin(), list.end(), [&](const auto& e) { return cancelled(e.key); }), list.end());
  };
  drop(events_.tokens), drop(events_.progress), drop(events_.exported), drop(events_.prefilled), drop(events_.failed);
  auto& c = events_.committed;
  c.erase(std::remove_if(c.begin(), c.end(), cancelled), c.end());
  for (uint32_t key : ended_) keys_.erase(key);
  ended_.clear();
  if (events_.empty()) {
    events_ = {};
    return;
  }
  events_.steps = steps_;
  sink_.step(std::move(events_));
  events_ = {};
}

void Engine::expire(Clock::time_point now) {
  std::vector<uint32_t> over;
  for (const auto& [key, held] : exports_)
    if (held.deadline <= now) over.push_back(key);
  for (uint32_t key : over) drop_export(key);
}

bool Engine::start_next() {
  if (queue_.empty()) return false;
  Job* job = queue_.front();
  if (!job->started) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_slots_ < job->held_slots) return false;
    free_slots_ -= job->held_slots;
    waiting_--;
    waiting_slots_ -= job->held_slots;
    job->started = true;
  }
  queue_.pop_front();
  current_ = job;
  if (job->replay.empty()) begin_prompt(*job);
  return current_ != nullptr;
}

// ---- calls into the library ----

void Engine::row(int32_t token, uint32_t position, int slot, bool output) {
  const int32_t i = batch_.n_tokens++;
  batch_token_[static_cast<size_t>(i)] = token;
  batch_pos_[static_cast<size_t>(i)] = static_cast<int32_t>(position);
  batch_seq_[static_cast<size_t>(i)] = slot;
  batch_out_[static_cast<size_t>(i)] = output;
}

// The library splits the KV of a call with one row over its threads once it spans more than kWholeCells, and then adds up in an
// order that depends on their number. A second row, forgotten at once, keeps it whole. It costs nearly what the first does (1.9
// times in all, measured), so two threads gain nothing by it: there, and at a sequence's last cell, one thread does the call.
int Engine::decode() {
  const bool lone = options_.threads > 1 && batch_.n_tokens == 1 && batch_pos_[0] >= kWholeCells;
  const int32_t next = batch_pos_[0] + 1;
  const bool spare = lone && options_.threads > 2 && next < cells_;
  if (spare) row(batch_token_[0], static_cast<uint32_t>(next), batch_seq_[0], false);
  else if (lone) api_.llama_set_n_threads(context_, 1, 1);
  const uint64_t before = thread_cpu_ns();
  int rc = api_.llama_decode(context_, batch_);
  if (rc == 0) api_.llama_synchronize(context_);
  cpu_decode_ += thread_cpu_ns() - before;
  steps_++;
  if (spare) {
    api_.llama_memory_seq_rm(memory_, batch_seq_[0], next, -1);
    batch_.n_tokens = 1;
  } else if (lone) {
    const auto threads = static_cast<int32_t>(options_.threads);
    api_.llama_set_n_threads(context_, threads, threads);
  }
  return rc;
}

bool Engine::read_state(int slot, uint32_t tokens, std::string& error) {
  const size_t size = api_.llama_state_seq_get_size(context_, slot);
  if (size != layout_.blob_bytes(tokens)) {
    error = "KV state: the sequence does not hold the tokens it should";
    return false;
  }
  return layout_.check(state_.get(), api_.llama_state_seq_get_data(context_, state_.get(), size, slot), tokens, error);
}

bool Engine::write_state(int slot, const uint8_t* blob, size_t bytes, uint32_t tokens, std::string& error) {
  if (api_.llama_state_seq_set_data(context_, blob, bytes, slot) == bytes && api_.llama_memory_seq_pos_min(memory_, slot) == 0 &&
      api_.llama_memory_seq_pos_max(memory_, slot) == static_cast<int32_t>(tokens) - 1)
    return true;
  api_.llama_memory_seq_rm(memory_, slot, -1, -1);
  error = "KV state: the library did not take it";
  return false;
}

int Engine::take_slot(Sequence* sequence) {
  for (size_t i = 0; i < owners_.size(); i++) {
    if (owners_[i]) continue;
    owners_[i] = sequence;
    return static_cast<int>(i);
  }
  throw std::logic_error("the ledger promised a slot that does not exist");
}

void Engine::free_slot(int& slot) {
  if (slot < 0) return;
  api_.llama_memory_seq_rm(memory_, slot, -1, -1);
  owners_[static_cast<size_t>(slot)] = nullptr;
  slot = -1;
}

void Engine::give_back(uint32_t slots) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_slots_ += slots;
}

// ---- prompts ----

void Engine::begin_prompt(Job& job) {
  const uint32_t n = job.prompt_tokens();
  job.sequences = std::vector<Sequence>(job.request.choices.size());
  for (size_t i = 0; i < job.sequences.size(); i++) {
    Sequence& s = job.sequences[i];
    s.job = &job;
    s.index = job.request.choices[i].index;
    s.tokens = job.request.choices[i].generated;
    if (!follow(s)) return fail(job, Code::bad_request, job.why);
  }
  job.prompt_slot = take_slot(&job.sequences[0]);
  // At least one token is computed: its logits are what this is about.
  job.cached_blocks = cache_->find(job.prompt(), (n - 1) / kBlockTokens);
  std::string error;
  if (!job.cached_blocks.empty()) {
    const uint32_t hit = static_cast<uint32_t>(job.cached_blocks.size()) * kBlockTokens;
    auto blob = blobs_->take();
    layout_.begin(blob.get(), hit);
    for (size_t i = 0; i < job.cached_blocks.size(); i++)
      layout_.place(blob.get(), hit, static_cast<uint32_t>(i) * kBlockTokens, kBlockTokens, job.cached_blocks[i].get());
    if (write_state(job.prompt_slot, blob.get(), layout_.blob_bytes(hit), hit, error)) {
      job.cached = job.done = job.sequences[0].kv = hit;
    } else {
      return fail(job, Code::decode_failed, error);
    }
  }
  if (job.kind == Kind::prefill) {
    for (uint32_t i = job.have_blocks; i < job.cached_blocks.size(); i++)
      if (!export_block(job, i, job.cached_blocks[i].get(), nullptr)) return;
  }
  job.cached_blocks.clear();
  if (job.cached > 0) events_.progress.push_back({job.request.key, job.done, n, job.cached});
}

void Engine::prompt_call() {
  Job& job = *current_;
  const uint32_t n = job.prompt_tokens(), whole = n / kBlockTokens * kBlockTokens, from = job.done;
  const uint32_t chunk = options_.prefill_chunk;
  const uint32_t to = from < whole ? std::min(whole, (from / chunk + 1) * chunk) : n;
  batch_.n_tokens = 0;
  for (uint32_t i = from; i < to; i++) row(job.request.prompt[i], i, job.prompt_slot, i + 1 == n);
  int rc = decode();
  if (rc == 2) return;  // stopping
  if (rc == 1) return fail(job, Code::full, "no KV cells left");
  if (rc != 0) return fail(job, Code::decode_failed, "llama_decode returned " + std::to_string(rc));
  job.done = job.sequences[0].kv = to;
  events_.progress.push_back({job.request.key, to, n, job.cached});
  if (to == n) return finish_prompt(job, from, api_.llama_get_logits_ith(context_, batch_.n_tokens - 1));
  std::string error;
  if (job.kind == Kind::prefill && !keep_blocks(job, from, error)) fail(job, Code::decode_failed, error);
}

// Puts the blocks that became complete since `from` into the prefix cache and, in mode prefill, into the export pool.
bool Engine::keep_blocks(Job& job, uint32_t from, std::string& error) {
  const uint32_t n = job.prompt_tokens(), done = job.done;
  const uint32_t first = from / kBlockTokens, end = done == n ? blocks_of(n) : done / kBlockTokens;
  const bool exports = job.kind == Kind::prefill && job.next_export < end;
  const size_t whole = std::min<size_t>(done / kBlockTokens, cache_->capacity());
  const size_t covered = cache_->covered(job.prompt(), whole);
  if (!exports && covered == whole) return true;
  if (!read_state(job.prompt_slot, done, error)) return false;
  const uint32_t export_from = exports ? std::max(first, job.next_export) : end;
  std::vector<CachedBlock> kept;
  // One pass over the rows for both uses.
  for (uint32_t i = std::min(export_from, static_cast<uint32_t>(covered)); i < end; i++) {
    const std::shared_ptr<uint8_t> keep = i >= covered && i < whole ? cache_->allocate() : nullptr;
    if (i >= export_from) {
      if (!export_block(job, i, nullptr, keep.get())) {
        error = "the export pool has no room that was promised";
        return false;
      }
    } else if (keep) {
      layout_.cut(state_.get(), done, i * kBlockTokens, kBlockTokens, 0, nullptr, keep.get());
    }
    if (keep) kept.push_back(keep);
  }
  if (!kept.empty()) cache_->put(job.prompt(), covered, kept);
  return true;
}

void Engine::finish_prompt(Job& job, uint32_t from, float* logits) {
  if (!logits) return fail(job, Code::decode_failed, "the library returned no logits");
  const uint32_t n = job.prompt_tokens();
  for (Sequence& s : job.sequences) {
    if (!s.tokens.empty()) continue;  // migrated: its next token comes after those it has
    if (!emit(s, logits)) s.ended = true;
  }
  if (job.broken) return fail(job, Code::decode_failed, job.why);
  std::string error;
  // In mode generate the cache is filled once, here: reading a growing state after every chunk would be quadratic.
  if (!keep_blocks(job, job.kind == Kind::prefill ? from : job.cached, error))
    return fail(job, Code::decode_failed, error);
  if (job.kind == Kind::prefill) return finish_export(job);

  current_ = nullptr;
  std::vector<Sequence*> going;
  for (Sequence& s : job.sequences)
    if (!s.ended) going.push_back(&s);
  const auto ended = static_cast<uint32_t>(job.sequences.size() - going.size());
  job.held_slots -= ended;
  give_back(ended);
  if (going.empty()) {
    free_slot(job.prompt_slot);
    return retire(job, false);
  }
  going[0]->slot = job.prompt_slot;
  going[0]->kv = n;
  owners_[static_cast<size_t>(job.prompt_slot)] = going[0];
  job.prompt_slot = -1;
  if (going.size() > 1 && !read_state(going[0]->slot, n, error)) return fail(job, Code::decode_failed, error);
  for (size_t i = 1; i < going.size(); i++) {
    going[i]->slot = take_slot(going[i]);
    going[i]->kv = n;
    if (!write_state(going[i]->slot, state_.get(), layout_.blob_bytes(n), n, error))
      return fail(job, Code::decode_failed, error);
  }
  for (Sequence* s : going) {
    if (s->kv + s->tokens.size() == n + 1 && job.request.choices[static_cast<size_t>(s - job.sequences.data())].generated.empty())
      s->decoding = true;
    else job.replay.push_back(s);
  }
  if (!job.replay.empty()) queue_.push_front(&job);
}

void Engine::replay_call() {
  Job& job = *current_;
  Sequence& s = *job.replay.front();
  const uint32_t n = job.prompt_tokens(), end = n + static_cast<uint32_t>(s.tokens.size());
  const uint32_t to = std::min(end, s.kv + kReplayRows);
  batch_.n_tokens = 0;
  for (uint32_t i = s.kv; i < to; i++) row(s.tokens[i - n], i, s.slot, i + 1 == end);
  int rc = decode();
  if (rc == 2) return;
  if (rc == 1) return fail(job, Code::full, "no KV cells left");
  if (rc != 0) return fail(job, Code::decode_failed, "llama_decode returned " + std::to_string(rc));
  s.kv = to;
  if (to < end) return;
  job.replay.pop_front();
  if (job.replay.empty()) current_ = nullptr;
  float* logits = api_.llama_get_logits_ith(context_, batch_.n_tokens - 1);
  if (!logits) return fail(job, Code::decode_failed, "the library returned no logits");
  s.decoding = emit(s, logits);
  if (job.broken) return fail(job, Code::decode_failed, job.why);
  if (!s.decoding) end_sequence(s);
}

// ---- decoding ----

bool Engine::move_state(int from, int to, std::string& error) {
  Sequence* s = owners_[static_cast<size_t>(from)];
  if (!read_state(from, s->kv, error) || !write_state(to, state_.get(), layout_.blob_bytes(s->kv), s->kv, error)) return false;
  owners_[static_cast<size_t>(to)] = s;
  free_slot(s->slot);
  s->slot = to;
  return true;
}

// libllama evaluates one graph per run of consecutive ids, so decoding sequences are gathered into one run: the one that
// needs the fewest moves and has no prompt in it. If there is none the split stays until the prompt is done.
void Engine::compact() {
  const auto slots = static_cast<int>(owners_.size());
  auto decoding = [&](int i) { return owners_[static_cast<size_t>(i)] && owners_[static_cast<size_t>(i)]->decoding; };
  int count = 0, low = -1, high = -1;
  for (int i = 0; i < slots; i++) {
    if (!decoding(i)) continue;
    count++;
    high = i;
    if (low < 0) low = i;
  }
  if (high - low + 1 == count) return;
  int start = -1, most = -1;
  for (int a = 0; a + count <= slots; a++) {
    int inside = 0;
    bool free = true;
    for (int i = a; i < a + count && free; i++) {
      if (decoding(i)) inside++;
      else free = !owners_[static_cast<size_t>(i)];
    }
    if (free && inside > most) most = inside, start = a;
  }
  if (start < 0) return;
  int hole = start;
  for (int i = 0; i < slots; i++) {
    if (!decoding(i) || (i >= start && i < start + count)) continue;
    while (owners_[static_cast<size_t>(hole)]) hole++;
    std::string error;
    Job* job = owners_[static_cast<size_t>(i)]->job;
    if (!move_state(i, hole, error)) return fail(*job, Code::decode_failed, error);
  }
}

void Engine::decode_call() {
  compact();
  std::vector<Sequence*> rows;
  batch_.n_tokens = 0;
  for (Sequence* s : owners_) {
    if (!s || !s->decoding) continue;
    row(s->tokens.back(), s->kv, s->slot, true);
    rows.push_back(s);
  }
  if (rows.empty()) return;
  int rc = decode();
  if (rc == 2) return;
  if (rc == 1) {
    // Nothing was written. The newest request gives way, the others run again in the next turn.
    Job* newest = rows[0]->job;
    for (Sequence* s : rows)
      if (s->job->order > newest->order) newest = s->job;
    return fail(*newest, Code::full, "no KV cells left");
  }
  if (rc != 0) {
    std::vector<Job*> broken;
    for (Sequence* s : rows)
      if (std::find(broken.begin(), broken.end(), s->job) == broken.end()) broken.push_back(s->job);
    for (Job* job : broken) fail(*job, Code::decode_failed, "llama_decode returned " + std::to_string(rc));
    return;
  }
  std::vector<Job*> broken;
  for (size_t i = 0; i < rows.size(); i++) {
    Sequence& s = *rows[i];
    s.kv++;
    if (s.job->broken) continue;
    float* logits = api_.llama_get_logits_ith(context_, static_cast<int32_t>(i));
    Job* job = s.job;
    if (!logits) job->broken = true, job->why = "the library returned no logits";
    else if (!emit(s, logits) && !job->broken) {
      end_sequence(s);  // may end the job too
      continue;
    }
    if (job->broken) broken.push_back(job);
  }
  for (Job* job : broken) fail(*job, Code::decode_failed, job->why);
}

bool Engine::follow(Sequence& s) {
  Job& job = *s.job;
  s.history = std::make_unique<TokenHistory>(job.request.sampling, job.request.prompt);
  for (int32_t token : s.tokens) s.history->add(token);
  if (job.request.sampling.grammar.empty()) return true;
  s.grammar = Grammar::parse(*model_, job.request.sampling.grammar, job.why);
  if (!s.grammar) return false;
  for (int32_t token : s.tokens) {
    if (!s.grammar->allows(token)) {
      job.why = "the generated tokens do not follow the grammar";
      return false;
    }
    s.grammar->accept(token);
  }
  return true;
}

bool Engine::emit(Sequence& s, float* logits) {
  const Request& r = s.job->request;
  const auto position = static_cast<uint32_t>(s.tokens.size());
  const std::vector<int32_t>* masked = position < r.min_tokens ? &model_->end_tokens : nullptr;
  int32_t token = sampler_.sample(logits, r.sampling, *s.history, masked, position, s.index, s.grammar.get());
  // A text that is complete must end, however many tokens were wanted.
  if (token < 0 && s.grammar && masked)
    token = sampler_.sample(logits, r.sampling, *s.history, nullptr, position, s.index, s.grammar.get());
  if (token < 0) {
    s.job->broken = true;
    s.job->why = s.grammar ? "the grammar allows no token" : "the logits are not finite";
    return false;
  }
  if (s.grammar) s.grammar->accept(token);
  uint32_t finish = kGoesOn;
  if (!r.ignore_eos && std::binary_search(model_->end_tokens.begin(), model_->end_tokens.end(), token)) finish = kStop;
  else if (position + 1 >= r.max_tokens || r.prompt.size() + position >= options_.sequence_tokens) finish = kLength;
  int32_t logprobs = -1;
  if (r.logprobs != 0) {
    logprobs = static_cast<int32_t>(events_.logprobs.size());
    events_.logprobs.push_back(sampler_.logprobs(logits, token, static_cast<uint32_t>(std::max(r.logprobs, 0))));
  }
  events_.tokens.push_back({r.key, s.index, position, token, finish, logprobs});
  s.tokens.push_back(token);
  s.history->add(token);
  return finish == kGoesOn;
}

// ---- endings ----

void Engine::end_sequence(Sequence& s) {
  Job& job = *s.job;
  s.decoding = false;
  s.ended = true;
  free_slot(s.slot);
  job.held_slots--;
  give_back(1);
  if (std::all_of(job.sequences.begin(), job.sequences.end(), [](const Sequence& x) { return x.ended; })) retire(job, false);
}

// Frees whatever the job still holds and forgets it. `keep_key`: its exported blocks live on.
void Engine::retire(Job& job, bool keep_key) {
  const uint32_t key = job.request.key;
  free_slot(job.prompt_slot);
  for (Sequence& s : job.sequences) free_slot(s.slot);
  if (current_ == &job) current_ = nullptr;
  queue_.erase(std::remove(queue_.begin(), queue_.end(), &job), queue_.end());
  if (!keep_key)
    for (uint64_t offset : job.exported) pool_->give(offset);
  if (!keep_key) exported_blocks_ -= static_cast<uint32_t>(job.exported.size());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (job.started) {
      free_slots_ += job.held_slots;
    } else {
      waiting_--;
      waiting_slots_ -= job.held_slots;
    }
    if (!keep_key) promised_ -= job.promised;
  }
  if (!keep_key) ended_.push_back(key);
  jobs_.erase(key);
}

void Engine::fail(Job& job, Code code, const std::string& message) {
  events_.failed.push_back({job.request.key, Error{code, message}});
  retire(job, false);
}

void Engine::cancel_on_thread(uint32_t key) {
  auto found = jobs_.find(key);
  if (found != jobs_.end()) return retire(*found->second, false);
  drop_export(key);
}

}  // namespace dynact
