// The engine core over a fake libllama: batching, cancel, shortage, compaction, hand-off, migration, shutdown. Run under ASan
// and under TSan (run.sh).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <unistd.h>

#include "../block_hash.h"
#include "../argmax.h"
#include "../engine.h"
#include "../philox.h"
#include "fake_llama.h"

using namespace dynact;

// Allocations that fail: the n-th from now on the thread that says so, or on any other.
namespace shortage {
thread_local bool here = false;
std::atomic<int> in{-1}, elsewhere_in{-1};

void* allocate(std::size_t size) {
  std::atomic<int>& left = here ? in : elsewhere_in;
  if (left.load(std::memory_order_relaxed) >= 0 && left.fetch_sub(1) == 0) throw std::bad_alloc();
  if (void* p = std::malloc(size ? size : 1)) return p;
  throw std::bad_alloc();
}
}  // namespace shortage
void* operator new(std::size_t size) { return shortage::allocate(size); }
void* operator new[](std::size_t size) { return shortage::allocate(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return std::malloc(size ? size : 1); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return std::malloc(size ? size : 1); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace {

int failures = 0;

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);   \
      failures++;                                                            \
    }                                                                        \
  } while (0)

using Tokens = std::vector<int32_t>;

Tokens prompt(uint32_t id, size_t n) {
  Tokens p(n);
  for (size_t i = 0; i < n; i++) p[i] = static_cast<int32_t>((id * 7919u + i * 104729u) % (fake::kVocab - 10) + 5);
  return p;
}

Request request(uint32_t key, Tokens p, uint32_t max_tokens = 12, uint64_t seed = 0) {
  Request r;
  r.key = key;
  r.prompt = std::move(p);
  r.choices = {{0, {}}};
  r.max_tokens = max_tokens;
  r.ignore_eos = true;
  r.sampling.temperature = seed ? 0.9f : 0.0f;
  r.sampling.top_p = seed ? 0.9f : 1.0f;
  r.sampling.repetition_penalty = seed ? 1.1f : 1.0f;
  r.sampling.seed = seed;
  return r;
}

// An engine and everything it said.
struct Rig {
  std::unique_ptr<Engine> engine;
  std::shared_ptr<Model> model;
  std::mutex mutex;
  std::condition_variable news;
  std::map<uint32_t, std::map<uint32_t, Tokens>> tokens;  // by key, choice
  std::map<uint32_t, uint32_t> ended, cached;             // choices ended
  std::map<uint32_t, std::vector<BlockDesc>> exported;
  std::map<uint32_t, Error> failed;
  std::map<uint32_t, int> prefilled, committed, events;
  std::set<uint64_t> held;  // the prefix cache, by what was said of it
  uint64_t steps = 0;

  explicit Rig(EngineOptions o = {}, bool threaded = false) {
    std::string error;
    model = Model::load(fake::api(), "/dev/null", false, 0, error);
    o.fingerprint = "test";
    o.owner = o.owner.empty() ? "worker-1" : o.owner;
    engine = Engine::create(model, o, error);
    if (!engine) {
      std::fprintf(stderr, "%s\n", error.c_str());
      std::exit(1);
    }
    EngineSink sink{[this](StepEvents&& e) { take(std::move(e)); }, [](Error e) {
                      std::fprintf(stderr, "died: %s\n", e.message.c_str());
                      failures++;
                    }};
    if (threaded) engine->start(std::move(sink));
    else engine->use_sink(std::move(sink));
  }

  ~Rig() { engine.reset(); }  // its thread writes into what is below

  void take(StepEvents&& e) {
    std::lock_guard<std::mutex> lock(mutex);
    CHECK(e.steps >= steps);
    steps = e.steps;
    for (auto& t : e.tokens) {
      auto& list = tokens[t.key][t.choice];
      CHECK(!failed.count(t.key));
      list.push_back(t.token);
      events[t.key]++;
      if (t.finish) ended[t.key]++;
    }
    for (auto& x : e.exported) exported[x.key].insert(exported[x.key].end(), x.blocks.begin(), x.blocks.end()), events[x.key]++;
    for (auto& x : e.progress) cached[x.key] = x.cached, events[x.key]++;
    for (auto& x : e.prefilled) prefilled[x.key]++, events[x.key]++;
    for (uint32_t k : e.committed) committed[k]++, events[k]++;
    for (const CacheChange& c : e.cache) CHECK(c.stored ? held.insert(c.hash).second : held.erase(c.hash) == 1);
    for (auto& x : e.failed) failed.emplace(x.key, x.error), events[x.key]++;
    news.notify_all();
  }

  // By hand: until nothing is left to do. The fetch thread may still be at work, hence `until`.
  void settle(const std::function<bool()>& until = [] { return true; }) {
    for (int i = 0; i < 100000; i++) {
      if (engine->turn()) continue;
      if (until()) return;
      usleep(100);
    }
    CHECK(!"settled in time");
  }
  Tokens run(Request r) {
    const uint32_t key = r.key;
    Verdict no = engine->generate(std::move(r));
    CHECK(!no);
    settle();
    return tokens[key][0];
  }
  PoolDesc pool() {
    const EngineOptions& o = engine->options();
    return {o.owner, o.epoch, static_cast<int>(getpid()), engine->pool()->fd(), engine->pool()->bytes()};
  }
  HandoffDesc handoff(uint32_t key, uint32_t prompt_tokens, uint32_t first_block) {
    HandoffDesc h;
    h.pool = pool();
    h.fingerprint = engine->fingerprint();
    h.kv_type = engine->layout().kv_type();
    h.layout = engine->layout().name();
    h.block_tokens = kBlockTokens;
    h.prompt_tokens = prompt_tokens;
    h.first_block = first_block;
    h.lease_ms = 5000;
    h.blocks = exported[key];
    return h;
  }
};

EngineOptions options(uint32_t slots, uint32_t export_blocks = 0, size_t cache_blocks = 64) {
  static std::atomic<uint64_t> pools{0};
  EngineOptions o;
  o.epoch = ++pools;  // a pool is named by owner and epoch; receivers keep its mapping
  o.slots = slots;
  o.sequence_tokens = 768;
  o.export_blocks = export_blocks;
  o.cache_bytes = cache_blocks * kBlockTokens * 2 * fake::kLayers * fake::kRow;
  o.max_waiting = 64;
  return o;
}

const size_t kLengths[] = {1, 5, 63, 64, 65, 127, 128, 200, 256, 257, 300, 511};

Tokens alone(const Request& r) {
  Rig rig(options(4, 0, 0));
  Request copy = r;
  return rig.run(copy);
}

void batching_equals_alone(uint64_t seed) {
  Rig rig(options(5));
  fake::faults.mixed = 0;
  std::map<uint32_t, Request> all;
  for (uint32_t i = 0; i < 12; i++) {
    Request r = request(i + 1, prompt(i, kLengths[i]), 4 + i, seed);
    all[i + 1] = r;
    CHECK(!rig.engine->generate(r));
    for (uint32_t turns = 0; turns < i % 4; turns++) rig.engine->turn();
  }
  rig.settle();
  for (auto& [key, r] : all) CHECK(rig.tokens[key][0] == alone(r));
  CHECK(fake::faults.mixed == 0);
  CHECK(fake::faults.most_rows <= 256);
  // Again, now from the prefix cache.
  for (auto& [key, r] : all) {
    Request again = r;
    again.key = key + 100;
    CHECK(rig.run(again) == rig.tokens[key][0]);
    const auto whole = static_cast<uint32_t>((r.prompt.size() - 1) / kBlockTokens * kBlockTokens);
    CHECK(rig.cached[key + 100] == whole);
  }
  CHECK(!rig.held.empty() && rig.held.size() == rig.engine->load().cached_blocks);
  EngineLoad load = rig.engine->load();
  CHECK(load.busy_slots == 0 && load.waiting == 0 && load.used_blocks == 0);
  // The library asked within each step whether to go on.
  CHECK(load.steps > 0 && load.progress >= 2 * load.steps);
}

void several_choices_share_one_prompt() {
  Rig rig(options(4));
  Request r = request(1, prompt(3, 130), 9, 77);
  r.choices = {{0, {}}, {1, {}}, {2, {}}};
  CHECK(!rig.engine->generate(r));
  rig.settle();
  for (uint32_t c = 0; c < 3; c++) {
    Request one = r;
    one.choices = {{c, {}}};
    Rig other(options(2));
    CHECK(!other.engine->generate(one));
    other.settle();
    CHECK(other.tokens[1][c] == rig.tokens[1][c]);
    CHECK(rig.tokens[1][c].size() == 9);
  }
  CHECK(rig.tokens[1][0] != rig.tokens[1][1]);
  CHECK(rig.engine->load().busy_slots == 0);
}

void migration_equals_never_migrated(uint64_t seed) {
  for (size_t n : {5, 64, 130}) {
    Request r = request(1, prompt(9, n), 90, seed);
    Tokens whole = alone(r);
    for (size_t cut : {1, 13, 63, 64, 80, 89}) {
      Request rest = r;
      rest.choices[0].generated.assign(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(cut));
      Tokens tail = alone(rest);
      CHECK(Tokens(whole.begin() + static_cast<ptrdiff_t>(cut), whole.end()) == tail);
    }
  }
}

void cancel_at_every_turn_frees_everything_and_is_silent() {
  for (int turns = 0; turns < 24; turns++) {
    Rig rig(options(3, 32));
    Request other = request(2, prompt(8, 70), 10);
    Request victim = request(1, prompt(4, 300), 8);
    if (turns % 2) victim.choices = {{0, {}}, {1, {}}};
    CHECK(!(turns % 3 == 2 ? rig.engine->prefill(victim, 0, 1000) : rig.engine->generate(victim)));
    CHECK(!rig.engine->generate(other));
    for (int i = 0; i < turns; i++) rig.engine->turn();
    rig.engine->cancel(1);
    const int before = rig.events[1];
    rig.engine->cancel(1);
    rig.settle();
    CHECK(rig.events[1] == before);
    CHECK(rig.tokens[2][0] == alone(other));
    EngineLoad load = rig.engine->load();
    CHECK(load.busy_slots == 0 && load.exported_blocks == 0 && load.waiting == 0);
    if (rig.engine->pool()) CHECK(rig.engine->pool()->used() == 0);
    // The key is free again.
    CHECK(rig.run(other = request(1, prompt(8, 70), 10)).size() >= 10);
  }
}

void shortage_fails_the_newest_alone() {
  Rig rig(options(3));
  Request a = request(1, prompt(1, 10), 20), b = request(2, prompt(2, 20), 20);
  CHECK(!rig.engine->generate(a));
  CHECK(!rig.engine->generate(b));
  for (int i = 0; i < 5; i++) rig.engine->turn();
  fake::faults.code = 1;
  fake::faults.fail_decode_in = 0;
  rig.settle();
  CHECK(rig.failed.count(2) && rig.failed.at(2).code == Code::full && !rig.failed.count(1));
  CHECK(rig.tokens[1][0] == alone(a));
  // Any other code ends those in the call, and the engine goes on.
  CHECK(!rig.engine->generate(request(3, prompt(3, 10), 20)));
  for (int i = 0; i < 3; i++) rig.engine->turn();
  fake::faults.code = -3;
  fake::faults.fail_decode_in = 0;
  rig.settle();
  CHECK(rig.failed.count(3) && rig.failed.at(3).code == Code::decode_failed);
  fake::faults.nan = true;
  CHECK(!rig.engine->generate(request(4, prompt(3, 10), 20)));
  rig.settle();
  fake::faults.nan = false;
  CHECK(rig.failed.count(4) && rig.failed.at(4).code == Code::decode_failed);
  CHECK(rig.run(request(5, prompt(1, 10), 20)) == rig.tokens[1][0]);
  CHECK(rig.engine->load().busy_slots == 0);
}

void bounds_are_typed_refusals() {
  EngineOptions o = options(1, 4);
  o.max_waiting = 2;
  Rig rig(o);
  auto code = [](const Verdict& v) { return v ? static_cast<int>(v->code) : -1; };
  auto is = [&](const Verdict& v, Code c) { return code(v) == static_cast<int>(c); };
  CHECK(is(rig.engine->generate(request(1, {}, 5)), Code::bad_request));
  CHECK(is(rig.engine->generate(request(1, {fake::kVocab}, 5)), Code::bad_request));
  CHECK(is(rig.engine->generate(request(1, {-1}, 5)), Code::bad_request));
  CHECK(is(rig.engine->generate(request(0, {1}, 5)), Code::bad_request));
  CHECK(is(rig.engine->generate(request(1, prompt(1, 769), 5)), Code::too_long));
  Request two = request(1, {1}, 5);
  two.choices = {{0, {}}, {1, {}}};
  CHECK(is(rig.engine->generate(two), Code::bad_request));
  CHECK(is(rig.engine->prefill(request(1, prompt(1, 257), 5), 0, 1000), Code::pool_full));
  CHECK(!rig.engine->prefill(request(1, prompt(1, 256), 5), 0, 1000));
  CHECK(is(rig.engine->generate(request(1, {1}, 5)), Code::bad_request));
  CHECK(!rig.engine->generate(request(2, {1}, 5)));
  CHECK(!rig.engine->generate(request(3, {1}, 5)));
  CHECK(is(rig.engine->generate(request(4, {1}, 5)), Code::full));
  uint32_t have = 0;
  CHECK(is(rig.engine->reserve(request(5, {1}, 5), have), Code::full));
  rig.settle();
  // A sequence that fills its context ends there.
  CHECK(rig.run(request(6, prompt(1, 768), 50)).size() == 1);
  CHECK(rig.run(request(7, prompt(1, 760), 50)).size() == 9);
  rig.engine->release(1);
  rig.settle();
  CHECK(rig.engine->pool()->used() == 0);
  CHECK(is(rig.engine->pull(99, rig.pool(), {}), Code::unknown_key));
}

void a_split_run_is_compacted() {
  Rig rig(options(6));
  fake::faults.graphs = 0;
  auto of = [](uint32_t i) { return request(i + 1, prompt(i, 20), i % 2 ? 60 : 14); };
  for (uint32_t i = 0; i < 6; i++) CHECK(!rig.engine->generate(of(i)));
  rig.settle();
  // One graph per call: holes never stay.
  CHECK(static_cast<uint64_t>(fake::faults.graphs) == rig.engine->load().steps);
  for (uint32_t i = 0; i < 6; i++) CHECK(rig.tokens[i + 1][0] == alone(of(i)));
}

// Prefill on one engine, decode on another; returns all tokens. `mutate` may damage the hand-off.
struct Outcome {
  Tokens tokens;
  std::optional<Error> error;
};
Outcome hand_off(Rig& p, Rig& d, Request r, bool early = false, const std::function<void(HandoffDesc&)>& mutate = nullptr,
                 const std::function<void(Rig&)>& damage = nullptr) {
  const uint32_t key = r.key;
  uint32_t have = 0;
  if (Verdict no = d.engine->reserve(r, have)) return {{}, *no};
  if (Verdict no = p.engine->prefill(r, have, 5000)) return {{}, *no};
  if (early) {
    while (!p.prefilled[key] && p.engine->turn()) {
      if (!p.exported[key].empty()) CHECK(!d.engine->pull(key, p.pool(), p.exported[key]));
    }
  }
  p.settle();
  CHECK(p.prefilled[key] == 1);
  if (damage) damage(p);
  HandoffDesc h = p.handoff(key, static_cast<uint32_t>(r.prompt.size()), have);
  if (mutate) mutate(h);
  std::vector<FirstToken> first;
  Tokens out;
  for (auto& c : r.choices)
    if (c.generated.empty()) first.push_back({c.index, p.tokens[key][c.index][0], false});
  if (Verdict no = d.engine->commit(key, h, first)) return {{}, *no};
  d.settle([&] { return d.failed.count(key) || d.ended[key] == r.choices.size(); });
  p.engine->release(key);
  p.settle();
  CHECK(p.engine->pool()->used() == 0);
  if (d.failed.count(key)) return {{}, d.failed.at(key)};
  CHECK(d.committed[key] == 1);
  if (!first.empty()) out.push_back(first[0].token);
  out.insert(out.end(), d.tokens[key][0].begin(), d.tokens[key][0].end());
  return {out, {}};
}

void hand_off_equals_alone(uint64_t seed) {
  Rig p(options(1, 64)), d(options(3));
  uint32_t key = 1;
  for (size_t n : kLengths) {
    Request r = request(key++, prompt(50 + static_cast<uint32_t>(n), n), 8, seed);
    const Tokens expected = alone(r);
    CHECK(hand_off(p, d, r, n % 2 == 0).tokens == expected);
    // Both caches are warm now, and only what D lacks is sent.
    r.key = key++;
    CHECK(hand_off(p, d, r).tokens == expected);
    CHECK(p.exported[r.key].size() == (n % kBlockTokens ? 1 : 0));
    // A choice that migrates through a hand-off.
    r.key = key++;
    r.choices[0].generated.assign(expected.begin(), expected.begin() + 5);
    CHECK(hand_off(p, d, r).tokens == Tokens(expected.begin() + 5, expected.end()));
  }
  CHECK(d.engine->load().busy_slots == 0 && p.engine->load().busy_slots == 0);
}

// Same tokens whatever the number of threads, in long sequences too, up to the last cell.
void threads_do_not_change_tokens() {
  auto with = [](EngineOptions o, uint32_t threads) {
    o.threads = threads;
    return o;
  };
  Rig p(with(options(1, 64), 1)), d(with(options(3), 2)), three(with(options(1, 0, 0), 3)), batch(with(options(4), 2));
  std::map<uint32_t, Request> all;
  uint32_t key = 1;
  for (size_t n : {200, 255, 256, 257, 321, 385, 500, 755}) {
    Request r = request(key, prompt(70 + static_cast<uint32_t>(n), n), 20);
    const Tokens expected = alone(r);
    CHECK(three.run(r) == expected);
    CHECK(hand_off(p, d, r).tokens == expected);
    Request rest = r;
    rest.key = key + 500;
    rest.choices[0].generated.assign(expected.begin(), expected.begin() + 7);
    CHECK(three.run(rest) == Tokens(expected.begin() + 7, expected.end()));
    all[key++] = r;
  }
  for (auto& [k, r] : all) CHECK(!batch.engine->generate(r));
  batch.settle();
  for (auto& [k, r] : all) CHECK(batch.tokens[k][0] == alone(r));
}

// Defect: a hand-off with tokens to recompute queued behind a request that waited for its slot.
void a_hand_off_never_queues_behind_a_request_that_waits_for_its_slot() {
  Rig p(options(1, 16)), d(options(2));
  Request b = request(1, prompt(40, 100), 12);
  const Tokens whole = alone(b);
  b.choices[0].generated.assign(whole.begin(), whole.begin() + 4);
  uint32_t have = 0;
  CHECK(!d.engine->reserve(b, have));
  CHECK(!p.engine->prefill(b, have, 5000));
  p.settle();
  Request a = request(2, prompt(41, 50), 6);
  a.choices = {{0, {}}, {1, {}}};
  CHECK(!d.engine->generate(a));
  d.engine->turn();
  CHECK(!d.engine->commit(1, p.handoff(1, 100, have), {}));
  d.settle([&] { return d.ended[1] == 1; });
  CHECK(d.tokens[1][0] == Tokens(whole.begin() + 4, whole.end()));
  CHECK(d.ended[2] == 2 && d.engine->load().busy_slots == 0);
}

// D and P run on threads of their own; every other borrower is cancelled while it copies.
void a_lent_prefix_is_not_computed_again() {
  const Tokens whole = prompt(60, 500);
  Rig d(options(2, 16), true);
  auto wait = [](Rig& rig, const std::function<bool()>& until) {
    std::unique_lock<std::mutex> lock(rig.mutex);
    CHECK(rig.news.wait_for(lock, std::chrono::seconds(20), until));
  };
  CHECK(!d.engine->generate(request(1, Tokens(whole.begin(), whole.begin() + 321), 2)));
  wait(d, [&] { return d.ended[1] == 1; });
  const Tokens expected = alone(request(9, whole, 8));
  for (uint32_t round = 0; round < 6; round++) {
    Rig p(options(2, 16), true);
    const uint32_t key = 10 + round;
    const Request r = request(key, whole, 8);
    uint32_t have = 0;
    CHECK(!d.engine->reserve(r, have));
    CHECK(have == (round == 0 ? 5u : 7u));
    CHECK(!d.engine->lend(key));
    wait(d, [&] { return d.exported.count(key) == 1; });
    PrefixDesc prefix{d.pool(), d.engine->fingerprint(), d.engine->layout().kv_type(), d.engine->layout().name(), d.exported[key]};
    if (round % 2) {
      CHECK(!p.engine->prefill(request(key + 100, whole, 8), have, 5000, prefix));
      if (round == 3) d.engine->cancel(key);
      p.engine->cancel(key + 100);
    }
    CHECK(!p.engine->prefill(r, have, 5000, prefix));
    wait(p, [&] { return p.prefilled[key] == 1; });
    // One whose lender is gone, or that was cancelled first, may find some, all or none of it.
    if (round % 2 == 0) CHECK(p.cached[key] == have * kBlockTokens);
    if (round == 3) continue;
    CHECK(!d.engine->commit(key, p.handoff(key, 500, have), {{0, p.tokens[key][0][0], false}}));
    wait(d, [&] { return d.ended[key] == 1; });
    Tokens got = p.tokens[key][0];
    got.insert(got.end(), d.tokens[key][0].begin(), d.tokens[key][0].end());
    CHECK(got == expected);
    p.engine->release(key);
  }
  CHECK(!d.engine->generate(request(2, prompt(61, 70), 2)));
  wait(d, [&] { return d.ended[2] == 1; });
  CHECK(d.engine->load().exported_blocks == 0 && d.engine->load().busy_slots == 0);
}

// Defect: the key of a request that ended was forgotten before its last events were out.
void a_cancel_in_the_last_turn_is_silent() {
  Rig rig(options(2));
  Request r = request(1, prompt(5, 30), 3);
  CHECK(!rig.engine->generate(r));
  for (int i = 0; i < 2; i++) rig.engine->turn();
  const int before = rig.events[1];
  CHECK(before > 0 && rig.ended[1] == 0);
  fake::faults.during_decode = [&] { rig.engine->cancel(1); };
  rig.engine->turn();
  fake::faults.during_decode = nullptr;
  rig.settle();
  CHECK(rig.events[1] == before && rig.ended[1] == 0);
  r.prompt = prompt(5, 31);
  CHECK(rig.run(r) != Tokens{});
  CHECK(rig.ended[1] == 1);
}

void colliding_hashes_never_share_a_block() {
  PrefixCache cache(16, 16 * 4);
  auto of = [](int32_t first, int32_t second) {
    Tokens t(2 * kBlockTokens, first);
    std::fill(t.begin() + kBlockTokens, t.end(), second);
    return t;
  };
  auto block = [&](uint8_t value) {
    auto bytes = cache.allocate();
    *bytes = value;
    return CachedBlock(bytes);
  };
  const Tokens a = of(1, 2), b = of(3, 2), c = of(1, 4);
  const uint64_t of_a[] = {10, 20}, of_b[] = {11, 20}, of_c[] = {10, 20}, of_d[] = {10, 21};
  cache.put({of_a, a.data()}, 0, {block(1), block(2)});
  CHECK(cache.find({of_a, a.data()}, 2).size() == 2);
  // The second block's hash is the same: after another first block, or with other tokens.
  cache.put({of_b, b.data()}, 0, {block(3)});
  CHECK(cache.find({of_b, b.data()}, 2).size() == 1);
  CHECK(cache.covered({of_b, b.data()}, 2) == 1);
  CHECK(cache.find({of_c, c.data()}, 2).size() == 1);
  CHECK(cache.find({of_a, b.data()}, 2).empty());
  // The newcomer takes the hash over, and the other prompt misses.
  cache.put({of_b, b.data()}, 1, {block(4)});
  auto found = cache.find({of_b, b.data()}, 2);
  CHECK(found.size() == 2 && *found[1] == 4);
  CHECK(cache.find({of_a, a.data()}, 2).size() == 1);
  CHECK(cache.blocks() == 3);
  // A block whose predecessor is not here stays out.
  const Tokens d = of(9, 9);
  cache.put({of_d, d.data()}, 1, {block(5)});
  CHECK(cache.blocks() == 3);
}

void a_small_cache_keeps_prefixes() {
  PrefixCache cache(16, 16 * 3);
  Tokens t(6 * kBlockTokens, 7);
  const uint64_t h[] = {1, 2, 3, 4, 5, 6}, other[] = {9};
  std::vector<CachedBlock> six;
  for (int i = 0; i < 6; i++) six.push_back(cache.allocate());
  cache.put({h, t.data()}, 0, six);
  CHECK(cache.blocks() == 3 && cache.find({h, t.data()}, 6).size() == 3);
  cache.put({other, t.data()}, 0, {six[0]});
  CHECK(cache.find({h, t.data()}, 6).size() == 2);
  cache.put({h, t.data()}, 2, {six[2], six[3]});
  CHECK(cache.find({h, t.data()}, 6).size() == 3 && cache.find({other, t.data()}, 1).empty());
  // What was said of it is what it holds: a prefix that shrank, grew again, and outlived a stranger.
  std::set<uint64_t> held;
  for (const CacheChange& c : cache.changes()) CHECK(c.stored ? held.insert(c.hash).second : held.erase(c.hash) == 1);
  CHECK((held == std::set<uint64_t>{1, 2, 3}) && cache.changes().empty());
  PrefixCache none(16, 15);
  none.put({h, t.data()}, 0, six);
  CHECK(none.changes().empty() && none.blocks() == 0 && none.find({h, t.data()}, 1).empty() && none.capacity() == 0);
}

// Every allocation in turn fails: a typed refusal, nothing held, and the next request is served.
void without_memory_requests_are_refused() {
  shortage::here = true;
  Rig p(options(1, 64)), d(options(2));
  const Request r = request(1, prompt(60, 200), 4);
  using Call = std::function<Verdict()>;
  uint32_t have = 0;
  const std::pair<Rig*, Call> calls[] = {{&d, [&] { return d.engine->generate(r); }},
                                         {&d, [&] { return d.engine->reserve(r, have); }},
                                         {&p, [&] { return p.engine->prefill(r, 0, 1000); }}};
  for (const auto& [rig, call] : calls) {
    int refused = 0;
    for (;; refused++) {
      Verdict no;
      bool thrown = false;
      // The first few are the copy of the argument, which is the caller's.
      shortage::in = refused;
      try {
        no = call();
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      const bool spent = shortage::in.exchange(-1) < 0;
      CHECK(!thrown || refused < 3);
      if (!no && !thrown && !spent) break;
      if (no) CHECK(no->code == Code::full);
      if (!no && !thrown) rig->engine->cancel(1);
      rig->settle();
      CHECK(rig->engine->load().busy_slots == 0 && rig->engine->load().waiting == 0);
      if (refused > 200) break;
    }
    CHECK(refused > 3 && refused <= 200);
    rig->engine->cancel(1);
    rig->settle();
    CHECK(rig->engine->load().busy_slots == 0 && rig->engine->load().waiting == 0);
    CHECK(!rig->engine->pool() || rig->engine->pool()->used() == 0);
  }
  // On the fetch thread: the hand-off fails or succeeds, and the process lives.
  uint32_t key = 2;
  for (int n = 0; n < 24; n++, key++) {
    Request one = request(key, prompt(key, 150), 4);
    CHECK(!d.engine->reserve(one, have));
    CHECK(!p.engine->prefill(one, have, 5000));
    p.settle();
    shortage::elsewhere_in = n;
    Verdict no = d.engine->commit(key, p.handoff(key, 150, have), {{0, p.tokens[key][0][0], false}});
    CHECK(!no);
    d.settle([&] { return d.failed.count(key) || d.ended[key] == 1; });
    shortage::elsewhere_in = -1;
    if (d.failed.count(key)) CHECK(d.failed.at(key).code == Code::gone);
    p.engine->release(key);
    p.settle();
    CHECK(d.engine->load().busy_slots == 0);
  }
  CHECK(!d.failed.empty() && !d.committed.empty());
  shortage::here = false;
}

void damaged_hand_offs_are_refused() {
  using Mutate = std::function<void(HandoffDesc&)>;
  const Mutate mutations[] = {
      [](HandoffDesc& h) { h.fingerprint += "x"; },
      [](HandoffDesc& h) { h.kv_type = "f32"; },
      [](HandoffDesc& h) { h.layout = "other"; },
      [](HandoffDesc& h) { h.block_tokens = 32; },
      [](HandoffDesc& h) { h.prompt_tokens--; },
      [](HandoffDesc& h) { h.first_block = 1; },
      [](HandoffDesc& h) { h.blocks.pop_back(); },
      [](HandoffDesc& h) { h.blocks.erase(h.blocks.begin() + 1); },
      [](HandoffDesc& h) { std::swap(h.blocks[0], h.blocks[1]); },
      [](HandoffDesc& h) { h.blocks[1] = h.blocks[0]; },
      [](HandoffDesc& h) { h.blocks[1].offset = h.blocks[0].offset; },
      [](HandoffDesc& h) { h.blocks[0].checksum ^= 1; },
      [](HandoffDesc& h) { h.blocks[0].hash ^= 1; },
      [](HandoffDesc& h) { h.blocks[0].tokens--; },
      [](HandoffDesc& h) { h.blocks[0].bytes--; },
      [](HandoffDesc& h) { h.blocks[0].offset = 1u << 30; },
      [](HandoffDesc& h) { h.blocks[0].offset = ~uint64_t{0} - 100; },
      [](HandoffDesc& h) { h.blocks[0].index = 77; },
      [](HandoffDesc& h) { h.pool.epoch++; },
      [](HandoffDesc& h) { h.pool.owner = "somebody-else"; },
      [](HandoffDesc& h) { h.pool.fd = 9999; },
      [](HandoffDesc& h) { h.lease_ms = 0; },
      [](HandoffDesc& h) { h.blocks.clear(); },
  };
  uint32_t key = 1;
  Rig d(options(2));
  for (const Mutate& mutate : mutations) {
    Rig p(options(1, 16));
    Outcome o = hand_off(p, d, request(key, prompt(900 + key, 200), 6), false, mutate);
    CHECK(o.error && (o.error->code == Code::mismatch || o.error->code == Code::gone));
    CHECK(d.tokens[key].empty());
    key++;
  }
  // Bytes that changed in the pool after they were described.
  for (size_t at : {0, 1000, 4095}) {
    Rig p(options(1, 16));
    const uint32_t k = key;
    Outcome o = hand_off(p, d, request(key, prompt(900 + key, 200), 6), false, nullptr,
                         [at, k](Rig& rig) { rig.engine->pool()->at(rig.exported[k][1].offset)[at] ^= 0x40; });
    CHECK(o.error && o.error->code == Code::mismatch);
    key++;
  }
  // Nothing of them was used, and nothing is left held.
  CHECK(d.engine->load().busy_slots == 0);
  Rig p(options(1, 16));
  Request good = request(key, prompt(901, 200), 6);
  CHECK(hand_off(p, d, good).tokens == alone(good));
}

void leases_expire() {
  Rig p(options(1, 16), true);
  CHECK(!p.engine->prefill(request(1, prompt(1, 200), 5), 0, 30));
  std::unique_lock<std::mutex> lock(p.mutex);
  CHECK(p.news.wait_for(lock, std::chrono::seconds(20), [&] { return p.prefilled[1] == 1; }));
  lock.unlock();
  for (int i = 0; i < 2000 && p.engine->pool()->used() > 0; i++) usleep(1000);
  CHECK(p.engine->pool()->used() == 0);
  CHECK(p.engine->load().exported_blocks == 0);
}

void min_tokens_and_ends() {
  // A bias makes the end token certain; min_tokens still holds it back.
  Rig rig(options(2));
  Request r = request(1, prompt(1, 10), 30);
  r.ignore_eos = false;
  r.min_tokens = 5;
  r.sampling.logit_bias = {{fake::kEnd, 100}};
  CHECK(!rig.engine->generate(r));
  rig.settle();
  CHECK(rig.tokens[1][0].size() == 6 && rig.tokens[1][0].back() == fake::kEnd);
  CHECK(std::count(rig.tokens[1][0].begin(), rig.tokens[1][0].end(), fake::kEnd) == 1);
}

void shutdown_with_work_in_flight() {
  for (int round = 0; round < 12; round++) {
    Rig p(options(2, 64), true), d(options(4), true);
    for (uint32_t i = 1; i <= 6; i++) {
      CHECK(!d.engine->generate(request(i, prompt(i, 40 * i), 200)));
      uint32_t have = 0;
      if (i <= 3) CHECK(!p.engine->prefill(request(i, prompt(i, 60 * i), 5), have, 1000));
    }
    uint32_t have = 0;
    Rig d2(options(4), true);
    CHECK(!d2.engine->reserve(request(1, prompt(1, 60), 50), have));
    {
      std::unique_lock<std::mutex> lock(p.mutex);
      p.news.wait_for(lock, std::chrono::milliseconds(round), [&] { return p.prefilled[1] == 1; });
      if (!p.exported[1].empty()) d2.engine->pull(1, p.pool(), p.exported[1]);
    }
    d.engine->cancel(static_cast<uint32_t>(round) % 6 + 1);
    d.engine->stop();
    CHECK(d.engine->generate(request(99, {1}, 5)).has_value());
  }
  CHECK(fake::faults.live_contexts == 0 && fake::faults.live_models == 0);
}

void threads_may_submit_and_cancel_at_once() {
  Rig rig(options(4), true);
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < 3; c++)
    clients.emplace_back([&rig, c] {
      for (uint32_t i = 0; i < 12; i++) {
        const uint32_t key = c * 100 + i + 1;
        while (rig.engine->generate(request(key, prompt(key, 10 + 17 * i), 6))) usleep(200);
        if (i % 3 == 0) rig.engine->cancel(key);
        rig.engine->load();
      }
    });
  for (auto& t : clients) t.join();
  std::unique_lock<std::mutex> lock(rig.mutex);
  CHECK(rig.news.wait_for(lock, std::chrono::seconds(60), [&] {
    for (uint32_t c = 0; c < 3; c++)
      for (uint32_t i = 0; i < 12; i++)
        if (i % 3 && rig.ended[c * 100 + i + 1] != 1) return false;
    return true;
  }));
  lock.unlock();
  Request one = request(1, prompt(2, 10 + 17), 6);
  CHECK(rig.tokens[2][0] == alone(one));
}

void sampler_draws_from_the_right_distribution() {
  // Known answers of Random123 for Philox4x32-10.
  auto zero = philox4x32({0, 0, 0, 0}, {0, 0});
  CHECK(zero[0] == 0x6627e8d5 && zero[1] == 0xe169c58d && zero[2] == 0xbc57ac4c && zero[3] == 0x9b00dbd8);
  const size_t n = 1003;
  std::vector<float> logits(n);
  for (size_t i = 0; i < n; i++) logits[i] = static_cast<float>((i * 7919) % 1000) / 100.0f;
  const std::vector<float> original = logits;
  std::vector<int32_t> order(n);
  for (size_t i = 0; i < n; i++) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
  CHECK(argmax(logits.data(), n) == order[0]);
  Sampler sampler(n);
  auto frequencies = [&](Sampling s) {
    std::map<int32_t, int> seen;
    TokenHistory none(s, {});
    for (uint32_t i = 0; i < 4000; i++) seen[sampler.sample(logits.data(), s, none, nullptr, i, 0)]++;
    return seen;
  };
  Sampling s;
  s.temperature = 0.7f;
  s.seed = 5;
  double total = 0;
  for (float l : logits) total += std::exp(static_cast<double>((l - logits[static_cast<size_t>(order[0])]) / s.temperature));
  auto expected = [&](int rank) {
    const size_t id = static_cast<size_t>(order[static_cast<size_t>(rank)]);
    return 4000 * std::exp(static_cast<double>((logits[id] - logits[static_cast<size_t>(order[0])]) / s.temperature)) / total;
  };
  auto whole = frequencies(s);
  for (int rank : {0, 5, 20}) {
    const double e = expected(rank), seen = whole[order[static_cast<size_t>(rank)]];
    CHECK(std::abs(seen - e) < 5 * std::sqrt(e) + 1);
  }
  s.top_k = 3;
  auto three = frequencies(s);
  CHECK(three.size() == 3);
  for (int rank = 0; rank < 3; rank++) CHECK(three.count(order[static_cast<size_t>(rank)]));
  s.top_k = 0;
  s.top_p = 0.5f;
  double run = 0;
  size_t nucleus = 0;
  while (run < 0.5 * 4000) run += expected(static_cast<int>(nucleus++));
  auto half = frequencies(s);
  CHECK(half.size() == nucleus);
  s.top_p = 1;
  s.min_p = 0.9f;
  for (auto& [id, count] : frequencies(s))
    CHECK(logits[static_cast<size_t>(id)] >= logits[static_cast<size_t>(order[0])] + s.temperature * std::log(0.9f) - 1e-4f);
  // Penalties leave the logits as they were.
  s = Sampling{};
  s.temperature = 0;
  s.presence_penalty = 2;
  s.repetition_penalty = 1.5f;
  TokenHistory history(s, {order[0], order[1]});
  history.add(order[0]);
  const int32_t other = sampler.sample(logits.data(), s, history, nullptr, 0, 0);
  CHECK(other != order[0] && other != order[1]);
  CHECK(logits == original);
  Logprobs l = sampler.logprobs(logits.data(), order[4], 5);
  CHECK(l.top.size() == 5 && l.top[0].first == order[0] && std::abs(l.top[4].second - l.own) < 1e-4f);
}

}  // namespace

int main(int argc, char** argv) {
  struct Test {
    const char* name;
    std::function<void()> run;
  };
  const Test tests[] = {
      {"sampler draws from the right distribution", sampler_draws_from_the_right_distribution},
      {"batching equals alone, greedy", [] { batching_equals_alone(0); }},
      {"batching equals alone, seeded", [] { batching_equals_alone(1234); }},
      {"several choices share one prompt", several_choices_share_one_prompt},
      {"migration equals never migrated, greedy", [] { migration_equals_never_migrated(0); }},
      {"migration equals never migrated, seeded", [] { migration_equals_never_migrated(99); }},
      {"cancel at every turn frees everything and is silent", cancel_at_every_turn_frees_everything_and_is_silent},
      {"shortage fails the newest alone", shortage_fails_the_newest_alone},
      {"bounds are typed refusals", bounds_are_typed_refusals},
      {"a split run is compacted", a_split_run_is_compacted},
      {"hand-off equals alone, greedy", [] { hand_off_equals_alone(0); }},
      {"hand-off equals alone, seeded", [] { hand_off_equals_alone(4321); }},
      {"threads do not change tokens", threads_do_not_change_tokens},
      {"a hand-off never queues behind a request that waits for its slot",
       a_hand_off_never_queues_behind_a_request_that_waits_for_its_slot},
      {"a lent prefix is not computed again", a_lent_prefix_is_not_computed_again},
      {"a cancel in the last turn is silent", a_cancel_in_the_last_turn_is_silent},
      {"colliding hashes never share a block", colliding_hashes_never_share_a_block},
      {"a small cache keeps prefixes", a_small_cache_keeps_prefixes},
      {"without memory requests are refused", without_memory_requests_are_refused},
      {"damaged hand-offs are refused", damaged_hand_offs_are_refused},
      {"leases expire", leases_expire},
      {"min tokens and ends", min_tokens_and_ends},
      {"shutdown with work in flight", shutdown_with_work_in_flight},
      {"threads may submit and cancel at once", threads_may_submit_and_cancel_at_once},
  };
  for (const Test& test : tests) {
    if (argc > 1 && !std::strstr(test.name, argv[1])) continue;
    const int before = failures;
    test.run();
    std::printf("%s %s\n", failures == before ? "ok  " : "FAIL", test.name);
    std::fflush(stdout);
  }
  if (failures) std::printf("%d checks failed\n", failures);
  return failures ? 1 : 0;
}
