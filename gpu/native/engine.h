// The engine: one thread that owns one llama_context and batches continuously. Rules (measured, docs/decisions/0003):
//  - one stream per sequence; decoding sequences sit in consecutive ascending slots, moved by state copy when a hole splits them;
//  - prefill and decode never share a llama_decode call, and at most `prefill_chunk` rows of prompts begin between two decode calls;
//  - chunk boundaries depend on the request alone: whole blocks of 64 in chunks that end at multiples of `prefill_chunk`, the
//    remainder in a call of its own, tokens that were generated before in calls of fewer than 64 rows;
//  - with several threads no call has a single row of a long sequence (`decode`).
// So a request's tokens do not depend on its neighbours, on cache hits, on hand-offs, on migrations or on the number
// of threads.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "grammar.h"
#include "kv_blob.h"
#include "kv_pool.h"
#include "model.h"
#include "prefix_cache.h"
#include "request.h"

namespace dynact {

struct EngineOptions {
  uint32_t slots = 8;             // sequences at a time, at most 256
  uint32_t sequence_tokens = 2048;  // per sequence, rounded up to 256
  uint32_t prefill_chunk = 256;   // multiple of 64, at most 512
  uint32_t threads = 1;
  uint32_t max_waiting = 32;      // requests queued behind full slots
  size_t cache_bytes = 256u << 20;
  uint32_t export_blocks = 0;     // slots of the export pool; 0 = never exports
  std::string owner;              // incarnation, for the pool's descriptor
  uint64_t epoch = 0;
  std::string fingerprint;        // of the model as the caller names it; layout and kernel are added to it
};

struct EngineSink {
  std::function<void(StepEvents&&)> step;  // on the engine thread, must not block
  std::function<void(Error)> died;
};

struct EngineLoad {
  uint32_t busy_slots, waiting, used_blocks, cached_blocks, exported_blocks;
  uint64_t steps;
  uint64_t progress;  // grows within a step too
};

// CPU time of the engine thread, ns.
struct EngineCpu {
  uint64_t total, decode;
};

class Engine {
 public:
  static std::unique_ptr<Engine> create(std::shared_ptr<Model> model, EngineOptions options, std::string& error);
  ~Engine();  // stop(), then frees the context, the pool and the fetcher

  const EngineOptions& options() const { return options_; }
  const KvLayout& layout() const { return layout_; }
  const std::string& fingerprint() const { return options_.fingerprint; }
  KvPool* pool() const { return pool_.get(); }

  void start(EngineSink sink);
  // Ends the thread; what is in flight ends without events. Idempotent.
  void stop();
  // For tests that drive the engine by hand: one turn of the loop. False when there was nothing to do.
  bool turn();
  void use_sink(EngineSink sink) { sink_ = std::move(sink); }

  // gpu/engine.ts documents these. Any thread; none blocks on the engine thread.
  Verdict generate(Request request);
  Verdict prefill(Request request, uint32_t have_blocks, uint32_t lease_ms, PrefixDesc prefix = {});
  Verdict reserve(Request request, uint32_t& have_blocks);
  Verdict lend(uint32_t key);
  Verdict pull(uint32_t key, const PoolDesc& pool, const std::vector<BlockDesc>& blocks);
  Verdict commit(uint32_t key, const HandoffDesc& handoff, const std::vector<FirstToken>& first);
  void cancel(uint32_t key);
  void release(uint32_t key);
  EngineLoad load() const;
  EngineCpu cpu() const { return {cpu_total_.load(), cpu_decode_.load()}; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Kind { generate, prefill, decode };
  struct Job;
  struct Sequence {
    Job* job = nullptr;
    uint32_t index = 0;  // choice
    int slot = -1;
    bool decoding = false, ended = false;
    uint32_t kv = 0;  // tokens in the KV
    std::vector<int32_t> tokens;  // generated so far
    std::unique_ptr<TokenHistory> history;
    std::unique_ptr<Grammar> grammar;  // null = any text
  };
  struct Job {
    Kind kind;
    Request request;
    uint64_t order = 0;
    std::vector<uint64_t> hashes;  // one per block, short last one included
    std::vector<Sequence> sequences;
    uint32_t held_slots = 0;  // of the ledger
    uint32_t cached = 0, done = 0;
    int prompt_slot = -1;
    bool started = false, broken = false;
    std::string why;  // it broke
    std::vector<CachedBlock> cached_blocks;  // until they are placed or exported
    std::deque<Sequence*> replay;  // sequences whose generated tokens must be recomputed
    // mode prefill
    uint32_t have_blocks = 0, next_export = 0, lease_ms = 0, promised = 0;
    std::vector<uint64_t> exported;  // pool offsets
    uint32_t prompt_tokens() const { return static_cast<uint32_t>(request.prompt.size()); }
    PromptRef prompt() const { return {hashes.data(), request.prompt.data()}; }
  };
  // Slots of the pool that a peer may read; given back when neither the reservation nor a copy needs them.
  struct Lent {
    std::shared_ptr<KvPool> pool;
    std::atomic<uint32_t>& gauge;
    std::vector<uint64_t> offsets;
    ~Lent();
  };
  struct Reservation {
    enum class Block : uint8_t { missing, pulling, placed };
    Request request;
    std::vector<uint64_t> hashes;
    std::vector<CachedBlock> blocks;  // by index: from the cache, or the verified copy
    std::vector<Block> states;
    uint32_t have = 0;  // leading blocks from the cache
    std::shared_ptr<uint8_t> blob;
    uint32_t outstanding = 0;  // fetch jobs
    bool closed = false;       // cancelled or failed: late copies are dropped
    bool pulled = false;
    std::string owner;
    uint64_t epoch = 0;
    std::optional<Code> failed;  // by a transfer, with `why`
    std::string why;
    bool committing = false;
    Clock::time_point deadline;
    std::vector<FirstToken> first;
    std::vector<CachedBlock> cached;  // what the cache had
    std::shared_ptr<Lent> lent;
  };
  struct Export {
    std::vector<uint64_t> offsets;
    uint32_t promised;
    Clock::time_point deadline;
  };
  struct Key {
    uint32_t slots;  // held in the ledger
    bool cancelled = false;
  };

  explicit Engine(std::shared_ptr<Model> model, EngineOptions options);
  bool open(std::string& error);
  bool learn_layout(std::string& error);

  // admission, any thread
  Verdict validate(const Request& request) const;
  // Runs `f`; without memory it refuses, and whatever `f` took is given back.
  template <class F>
  Verdict guarded(F f) {
    try {
      return f();
    } catch (const std::bad_alloc&) {
      return Error{Code::full, "no memory"};
    }
  }
  Verdict admit(const Request& request);  // holds mutex_
  Verdict admit_held(const Request& request);  // the same for one that takes its slots at once
  Verdict enqueue(std::unique_ptr<Job> job, const PrefixDesc& prefix = {});
  bool borrow(const PrefixDesc& prefix, const Job& job, std::function<void()> then);
  void post(std::function<void()> command);  // holds mutex_
  void look();  // holds mutex_: something may be due on the engine thread

  // engine thread
  void run();
  void wait();
  void publish();
  bool start_next();
  void begin_prompt(Job& job);
  void prompt_call();
  void finish_prompt(Job& job, uint32_t from, float* logits);
  void replay_call();
  void decode_call();
  void compact();
  bool move_state(int from, int to, std::string& error);
  int decode();
  void row(int32_t token, uint32_t position, int slot, bool output);
  bool read_state(int slot, uint32_t tokens, std::string& error);
  bool write_state(int slot, const uint8_t* blob, size_t bytes, uint32_t tokens, std::string& error);
  int take_slot(Sequence* sequence);
  void free_slot(int& slot);
  bool follow(Sequence& sequence);  // takes up history and grammar; false: its tokens break the grammar
  bool emit(Sequence& sequence, float* logits);  // true = it goes on
  void end_sequence(Sequence& sequence);
  void retire(Job& job, bool keep_key);
  void fail(Job& job, Code code, const std::string& message);
  bool keep_blocks(Job& job, uint32_t from, std::string& error);
  bool export_block(Job& job, uint32_t index, const uint8_t* cached, uint8_t* keep);
  void finish_export(Job& job);
  void expire(Clock::time_point now);
  void drop_export(uint32_t key);
  void cancel_on_thread(uint32_t key);
  void take_over(uint32_t key, const std::shared_ptr<Reservation>& r);
  void give_back(uint32_t slots);
  Job* find_job(uint32_t key);

  // hand-off, any thread
  using Arrived = std::vector<std::pair<uint32_t, CachedBlock>>;
  uint64_t receive(Reservation& r, const BlockDesc& block, const uint8_t* from, Arrived& arrived);
  void fetched(Reservation& r, FetchResult&& result, Arrived& arrived);
  Verdict check(const Reservation& r, const HandoffDesc& h, const std::vector<FirstToken>& first) const;
  Verdict start_fetch(const std::shared_ptr<Reservation>& r, const PoolDesc& pool, std::vector<BlockDesc> want);
  void drop_reservation(uint32_t key);  // holds mutex_
  void settle_reservations(Clock::time_point now);
  Verdict place_cached(const std::shared_ptr<Reservation>& r);  // holds mutex_

  const std::shared_ptr<Model> model_;
  const LlamaApi& api_;
  EngineOptions options_;
  llama_context* context_ = nullptr;
  llama_memory_t memory_ = nullptr;
  int32_t cells_ = 0;  // of a sequence
  ggml_threadpool* threadpool_ = nullptr;
  void (*threadpool_free_)(ggml_threadpool*) = nullptr;
  KvLayout layout_;
  std::unique_ptr<PrefixCache> cache_;
  std::shared_ptr<KvPool> pool_;
  EngineSink sink_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;

  // ledger and inbox
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> inbox_;
  std::unordered_map<uint32_t, Key> keys_;
  std::unordered_map<uint32_t, std::shared_ptr<Reservation>> reservations_;
  uint32_t free_slots_, waiting_ = 0, waiting_slots_ = 0, promised_ = 0;
  bool dead_ = false, look_ = false;

  // engine thread only
  std::unordered_map<uint32_t, std::unique_ptr<Job>> jobs_;
  std::deque<Job*> queue_;  // not started, or with tokens to replay
  Job* current_ = nullptr;
  std::vector<Sequence*> owners_;  // by slot; a prompt belongs to its job's first sequence
  std::unordered_map<uint32_t, Export> exports_;
  StepEvents events_;
  std::vector<uint32_t> ended_;  // keys that are free again once `events_` are out
  Sampler sampler_;
  uint64_t orders_ = 0;
  std::shared_ptr<uint8_t> state_;  // of a sequence, as read_state found it
  llama_batch batch_{};
  std::vector<int32_t> batch_token_, batch_pos_, batch_n_seq_, batch_seq_;
  std::vector<int32_t*> batch_seq_ptr_;
  std::vector<int8_t> batch_out_;
  std::shared_ptr<HostArena> blobs_;  // states of whole sequences, on their way out or in
  std::atomic<uint64_t> steps_{0}, computed_{0}, cpu_total_{0}, cpu_decode_{0};
  std::atomic<uint32_t> used_blocks_{0}, exported_blocks_{0};

  // Last: its destructor waits for callbacks that use everything above.
  std::unique_ptr<KvFetcher> fetcher_;
};

}  // namespace dynact
