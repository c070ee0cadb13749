// The engine's half of a hand-off: blocks out of a finished prompt into the pool, and verified copies into a sequence.
#include <algorithm>
#include <cstring>
#include <utility>

#include "block_hash.h"
#include "engine.h"

namespace dynact {
namespace {

Error mismatch(std::string what) { return {Code::mismatch, "hand-off: " + std::move(what)}; }

}  // namespace

// ---- sending ----

// `cached` null: cut it out of the state that was just read, and into `keep` too if that is not null.
bool Engine::export_block(Job& job, uint32_t index, const uint8_t* cached, uint8_t* keep) {
  const uint32_t n = job.prompt_tokens(), start = index * kBlockTokens, count = std::min(kBlockTokens, n - start);
  const int64_t offset = pool_->take();
  if (offset < 0) {
    if (cached) fail(job, Code::pool_full, "the export pool has no room that was promised");
    return false;
  }
  uint8_t* slot = pool_->at(static_cast<uint64_t>(offset));
  const size_t size = layout_.token_bytes() * count;
  job.exported.push_back(static_cast<uint64_t>(offset));
  exported_blocks_++;
  job.next_export = index + 1;
  BlockDesc block;
  block.index = index;
  block.tokens = count;
  block.offset = static_cast<uint64_t>(offset);
  block.bytes = static_cast<uint32_t>(size);
  block.hash = job.hashes[index];
  if (cached) {
    std::memcpy(slot, cached, size);
    block.checksum = block_checksum(slot, size, block.hash);
  } else {
    block.checksum = layout_.cut(state_.get(), job.done, start, count, block.hash, slot, keep);
  }
  if (events_.exported.empty() || events_.exported.back().key != job.request.key)
    events_.exported.push_back({job.request.key, {}});
  events_.exported.back().blocks.push_back(block);
  return true;
}

void Engine::finish_export(Job& job) {
  const uint32_t key = job.request.key;
  events_.prefilled.push_back({key, job.cached});
  exports_[key] = {std::move(job.exported), job.promised, Clock::now() + std::chrono::milliseconds(job.lease_ms)};
  retire(job, true);
}

void Engine::drop_export(uint32_t key) {
  auto job = jobs_.find(key);
  if (job != jobs_.end()) {
    // Released before it was done: nobody wants it any more. Only mode prefill has anything to release.
    if (job->second->kind == Kind::prefill) retire(*job->second, false);
    return;
  }
  auto held = exports_.find(key);
  if (held == exports_.end()) return;
  for (uint64_t offset : held->second.offsets) pool_->give(offset);
  exported_blocks_ -= static_cast<uint32_t>(held->second.offsets.size());
  std::lock_guard<std::mutex> lock(mutex_);
  promised_ -= held->second.promised;
  keys_.erase(key);
  exports_.erase(held);
}

// ---- lending and borrowing a prefix ----

Engine::Lent::~Lent() {
  for (uint64_t offset : offsets) pool->give(offset);
  gauge -= static_cast<uint32_t>(offsets.size());
}

// Copied on the thread that copies everything; what a reader finds of blocks that were given back fails its checksum.
Verdict Engine::lend(uint32_t key) {
  return guarded([&]() -> Verdict {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = reservations_.find(key);
    if (found == reservations_.end()) return Error{Code::unknown_key, "no reservation " + std::to_string(key)};
    const std::shared_ptr<Reservation> r = found->second;
    if (r->lent) return Error{Code::bad_request, "lent twice"};
    // An engine that exports prompts of its own keeps its pool for those.
    if (!pool_ || promised_ > 0) return Error{Code::pool_full, "this engine lends nothing"};
    auto lent = std::shared_ptr<Lent>(new Lent{pool_, exported_blocks_, {}});
    auto blocks = std::make_shared<std::vector<BlockDesc>>();
    std::vector<CachedBlock> held(r->cached.begin(), r->cached.end());
    for (uint32_t i = 0; i < held.size(); i++) {
      const int64_t offset = pool_->take();
      if (offset < 0) break;
      lent->offsets.push_back(static_cast<uint64_t>(offset));
      exported_blocks_++;
      const size_t size = layout_.token_bytes() * kBlockTokens;
      blocks->push_back({i, kBlockTokens, static_cast<uint64_t>(offset), static_cast<uint32_t>(size), 0, r->hashes[i]});
    }
    const auto copy = [this, lent, blocks, held = std::move(held)] {
      for (BlockDesc& block : *blocks) {
        uint8_t* slot = lent->pool->at(block.offset);
        std::memcpy(slot, held[block.index].get(), block.bytes);
        block.checksum = block_checksum(slot, block.bytes, block.hash);
      }
    };
    const auto done = [this, key, blocks](FetchResult&&) {
      std::lock_guard<std::mutex> held_lock(mutex_);
      post([this, key, blocks] { events_.exported.push_back({key, std::move(*blocks)}); });
    };
    if (!fetcher_->run(copy, done)) return Error{Code::full, "too many transfers at once"};
    r->lent = std::move(lent);
    return {};
  });
}

// Puts a peer's blocks into the prefix cache, as far as they are whole, of this prompt and missing here; `then` is posted when that is
// over, however it went: what is missing is computed. False: there is nothing to wait for. Holds mutex_.
bool Engine::borrow(const PrefixDesc& prefix, const Job& job, std::function<void()> then) {
  if (prefix.fingerprint != options_.fingerprint || prefix.kv_type != layout_.kv_type() || prefix.layout != layout_.name()) return false;
  const uint32_t n = job.prompt_tokens();
  // The last token is computed in any case.
  const size_t usable = std::min<size_t>((n - 1) / kBlockTokens, cache_->capacity());
  const size_t here = cache_->covered(job.prompt(), usable);
  std::vector<BlockDesc> fetch;
  for (const BlockDesc& block : prefix.blocks) {
    if (block.index < here || block.index >= usable) continue;
    const bool good = block.index == here + fetch.size() && block.tokens == kBlockTokens &&
                      block.bytes == layout_.token_bytes() * kBlockTokens && block.hash == job.hashes[block.index];
    if (!good) return false;
    fetch.push_back(block);
  }
  if (fetch.empty()) return false;
  struct Arriving {
    std::vector<uint64_t> hashes;
    std::vector<int32_t> prompt;
    std::vector<CachedBlock> blocks;
  };
  auto arriving = std::make_shared<Arriving>(Arriving{job.hashes, job.request.prompt, {}});
  const auto copy = [this, arriving](const BlockDesc& block, const uint8_t* from) {
    std::shared_ptr<uint8_t> bytes = cache_->allocate();
    std::memcpy(bytes.get(), from, block.bytes);
    arriving->blocks.push_back(bytes);
    return block_checksum(bytes.get(), block.bytes, block.hash);
  };
  const auto done = [this, arriving, here, then = std::move(then)](FetchResult&& result) {
    if (result.status == FetchStatus::ok)
      cache_->put({arriving->hashes.data(), arriving->prompt.data()}, here, arriving->blocks);
    std::lock_guard<std::mutex> lock(mutex_);
    post(then);
  };
  return fetcher_->fetch(prefix.pool, std::move(fetch), copy, done);
}

// ---- receiving ----

Verdict Engine::reserve(Request request, uint32_t& have_blocks) {
  return guarded([&]() -> Verdict {
    if (Verdict no = validate(request)) return no;
    {
      // Asked first, so that a full engine copies nothing.
      std::lock_guard<std::mutex> lock(mutex_);
      if (Verdict no = admit_held(request)) return no;
    }
    const auto n = static_cast<uint32_t>(request.prompt.size());
    auto r = std::make_shared<Reservation>();
    r->hashes = sequence_hashes(reinterpret_cast<const uint32_t*>(request.prompt.data()), n, kBlockTokens,
                                salted_seed(request.cache_salt), true);
    r->blocks = cache_->find({r->hashes.data(), request.prompt.data()}, n / kBlockTokens);
    r->have = static_cast<uint32_t>(r->blocks.size());
    r->cached = r->blocks;
    r->blocks.resize(r->hashes.size());
    r->states.resize(r->hashes.size(), Reservation::Block::missing);
    r->blob = blobs_->take();
    layout_.begin(r->blob.get(), n);
    const uint32_t key = request.key, slots = static_cast<uint32_t>(request.choices.size()), have = r->have;
    std::lock_guard<std::mutex> lock(mutex_);
    if (Verdict no = admit_held(request)) return no;
    r->request = std::move(request);
    keys_[key] = {slots};
    try {
      if (Verdict no = place_cached(r)) {
        keys_.erase(key);
        return no;
      }
      reservations_[key] = std::move(r);
    } catch (...) {
      keys_.erase(key);
      throw;
    }
    free_slots_ -= slots;
    have_blocks = have;
    return {};
  });
}

// The leading blocks that the cache has go where the one blob wants them: on the thread that copies, like everything else.
Verdict Engine::place_cached(const std::shared_ptr<Reservation>& r) {
  if (r->have == 0) return {};
  auto arrived = std::make_shared<Arrived>();
  for (uint32_t i = 0; i < r->have; i++) arrived->emplace_back(i, r->blocks[i]);
  std::weak_ptr<Reservation> weak = r;
  const auto place = [this, weak, arrived] {
    auto reservation = weak.lock();
    if (!reservation) return;
    const auto n = static_cast<uint32_t>(reservation->request.prompt.size());
    for (const auto& [index, bytes] : *arrived)
      layout_.place(reservation->blob.get(), n, index * kBlockTokens, kBlockTokens, bytes.get());
  };
  const auto done = [this, weak, arrived](FetchResult&& result) {
    if (auto reservation = weak.lock()) fetched(*reservation, std::move(result), *arrived);
  };
  if (!fetcher_->run(place, done)) return Error{Code::full, "too many transfers at once"};
  r->outstanding++;
  std::fill_n(r->states.begin(), r->have, Reservation::Block::pulling);
  return {};
}

Verdict Engine::start_fetch(const std::shared_ptr<Reservation>& r, const PoolDesc& pool,
                            std::vector<BlockDesc> want) {
  const auto n = static_cast<uint32_t>(r->request.prompt.size());
  std::vector<BlockDesc> fetch;
  for (const BlockDesc& block : want) {
    if (block.index >= r->hashes.size()) return mismatch("block " + std::to_string(block.index) + " is beyond the prompt");
    const uint32_t tokens = std::min(kBlockTokens, n - block.index * kBlockTokens);
    if (block.tokens != tokens || block.bytes != layout_.token_bytes() * tokens)
      return mismatch("block " + std::to_string(block.index) + " has the wrong size");
    if (block.hash != r->hashes[block.index])
      return mismatch("block " + std::to_string(block.index) + " belongs to another prompt");
    if (r->states[block.index] == Reservation::Block::missing) fetch.push_back(block);
  }
  if (fetch.empty()) return {};
  if (r->pulled && (r->owner != pool.owner || r->epoch != pool.epoch)) return mismatch("blocks come from two pools");
  r->owner = pool.owner;
  r->epoch = pool.epoch;
  std::weak_ptr<Reservation> weak = r;
  auto arrived = std::make_shared<Arrived>();
  const auto copy = [this, weak, arrived](const BlockDesc& block, const uint8_t* from) {
    auto reservation = weak.lock();
    // Nobody waits for it any more.
    return reservation ? receive(*reservation, block, from, *arrived) : ~block.checksum;
  };
  const bool queued = fetcher_->fetch(pool, fetch, copy, [this, weak, arrived](FetchResult&& result) {
    if (auto reservation = weak.lock()) fetched(*reservation, std::move(result), *arrived);
  });
  if (!queued) return Error{Code::full, "too many transfers at once"};
  // `fetched` waits for the lock that is held here.
  r->pulled = true;
  r->outstanding++;
  for (const BlockDesc& block : fetch) r->states[block.index] = Reservation::Block::pulling;
  return {};
}

Verdict Engine::pull(uint32_t key, const PoolDesc& pool, const std::vector<BlockDesc>& blocks) {
  return guarded([&]() -> Verdict {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = reservations_.find(key);
    if (found == reservations_.end()) return Error{Code::unknown_key, "no reservation " + std::to_string(key)};
    return start_fetch(found->second, pool, blocks);
  });
}

// On the fetch thread: into the one blob, and into a block of its own for the cache if that may keep it.
uint64_t Engine::receive(Reservation& r, const BlockDesc& block, const uint8_t* from, Arrived& arrived) {
  const auto n = static_cast<uint32_t>(r.request.prompt.size());
  const bool keeps = block.tokens == kBlockTokens && cache_->capacity() > 0;
  const std::shared_ptr<uint8_t> keep = keeps ? cache_->allocate() : nullptr;
  arrived.emplace_back(block.index, keep);
  return layout_.receive(r.blob.get(), n, block.index * kBlockTokens, block.tokens, block.hash, from, keep.get());
}

// On the fetch thread, when all blocks of a job are in place and verified, or are not. What to do about it is the engine thread's
// business.
void Engine::fetched(Reservation& r, FetchResult&& result, Arrived& arrived) {
  std::lock_guard<std::mutex> lock(mutex_);
  r.outstanding--;
  if (r.closed) return;
  if (result.status == FetchStatus::ok) {
    for (auto& [index, bytes] : arrived) {
      r.blocks[index] = std::move(bytes);
      r.states[index] = Reservation::Block::placed;
    }
  } else if (!r.failed) {
    r.failed = result.status == FetchStatus::mismatch ? Code::mismatch : Code::gone;
    r.why = std::move(result.message);
  }
  look();
}

Verdict Engine::check(const Reservation& r, const HandoffDesc& h, const std::vector<FirstToken>& first) const {
  if (h.fingerprint != options_.fingerprint) return mismatch("the model or the library is another one");
  if (h.kv_type != layout_.kv_type()) return mismatch("the KV type is " + h.kv_type);
  if (h.layout != layout_.name()) return mismatch("the layout is " + h.layout);
  if (h.block_tokens != kBlockTokens) return mismatch("blocks have another size");
  if (h.prompt_tokens != r.request.prompt.size()) return mismatch("the prompt has another length");
  if (h.lease_ms == 0) return Error{Code::gone, "hand-off: the lease is over"};
  if (h.first_block > r.have) return mismatch("blocks before the first are missing");
  if (h.first_block + h.blocks.size() != r.hashes.size()) return mismatch("blocks are missing");
  for (size_t i = 0; i < h.blocks.size(); i++)
    if (h.blocks[i].index != h.first_block + i) return mismatch("positions have a hole");
  if (r.pulled && (r.owner != h.pool.owner || r.epoch != h.pool.epoch)) return mismatch("blocks were pulled from another pool");
  for (const FirstToken& f : first)
    if (f.token < 0 || f.token >= model_->vocab_tokens) return mismatch("a first token is not in the vocabulary");
  for (const ChoiceSpec& c : r.request.choices) {
    auto of = [&](const FirstToken& f) { return f.choice == c.index; };
    const auto tokens = std::count_if(first.begin(), first.end(), of);
    if (tokens != (c.generated.empty() ? 1 : 0)) return mismatch("first tokens do not fit the choices");
  }
  return {};
}

Verdict Engine::commit(uint32_t key, const HandoffDesc& h, const std::vector<FirstToken>& first) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = reservations_.find(key);
  if (found == reservations_.end()) return Error{Code::unknown_key, "no reservation"};
  const std::shared_ptr<Reservation> r = found->second;
  if (r->committing) return Error{Code::bad_request, "committed twice"};
  Verdict no = guarded([&]() -> Verdict {
    if (Verdict refusal = check(*r, h, first)) return refusal;
    r->first = first;
    return start_fetch(r, h.pool, h.blocks);
  });
  if (no) {
    // A refused hand-off ends the reservation: nothing right can follow.
    drop_reservation(key);
    keys_.erase(key);
    return no;
  }
  r->committing = true;
  r->deadline = Clock::now() + std::chrono::milliseconds(h.lease_ms);
  look();
  return {};
}

// Gives back its slots; late copies are dropped. The key stays.
void Engine::drop_reservation(uint32_t key) {
  auto found = reservations_.find(key);
  found->second->closed = true;
  Key& held = keys_[key];
  free_slots_ += held.slots;
  held.slots = 0;
  reservations_.erase(found);
  look();  // a waiting request may start
}

// On the engine thread: ends the reservations whose transfer failed or came too late, takes over the complete ones.
void Engine::settle_reservations(Clock::time_point now) {
  std::vector<std::pair<uint32_t, std::shared_ptr<Reservation>>> due;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, r] : reservations_)
      if (r->failed || (r->committing && (r->outstanding == 0 || r->deadline <= now))) due.emplace_back(key, r);
    for (auto& [key, r] : due) {
      if (!r->failed && r->outstanding > 0) {
        r->failed = Code::gone;
        r->why = "the lease ran out before the copy was complete";
      }
      if (!r->failed && std::any_of(r->states.begin(), r->states.end(), [](auto s) { return s != Reservation::Block::placed; })) {
        r->failed = Code::mismatch;
        r->why = "hand-off: a block never came";
      }
      if (!r->failed) {
        reservations_.erase(key);
        continue;
      }
      events_.failed.push_back({key, Error{*r->failed, r->why.empty() ? "no memory for the copy" : r->why}});
      ended_.push_back(key);
      drop_reservation(key);
    }
  }
  for (auto& [key, r] : due)
    if (!r->failed) take_over(key, r);
}

// On the engine thread, once every block is in place: one set_data per choice, then decoding goes on.
void Engine::take_over(uint32_t key, const std::shared_ptr<Reservation>& r) {
  auto owned = std::make_unique<Job>();
  Job& job = *owned;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    job.held_slots = std::exchange(keys_[key].slots, 0);
  }
  const auto n = static_cast<uint32_t>(r->request.prompt.size());
  job.kind = Kind::decode;
  job.started = true;
  job.order = ++orders_;
  job.request = std::move(r->request);
  job.hashes = std::move(r->hashes);
  job.done = n;
  job.cached = r->have * kBlockTokens;
  job.sequences = std::vector<Sequence>(job.request.choices.size());
  jobs_[key] = std::move(owned);
  r->blocks.resize(n / kBlockTokens);
  cache_->put(job.prompt(), 0, r->blocks);
  events_.committed.push_back(key);

  std::string error;
  uint32_t ended = 0;
  for (size_t i = 0; i < job.sequences.size(); i++) {
    Sequence& s = job.sequences[i];
    s.job = &job;
    s.index = job.request.choices[i].index;
    s.tokens = job.request.choices[i].generated;
    const bool fresh = s.tokens.empty();
    auto f = std::find_if(r->first.begin(), r->first.end(), [&](const FirstToken& x) { return x.choice == s.index; });
    if (fresh && f->finished) {
      s.ended = true;
      ended++;
      continue;
    }
    if (fresh) s.tokens.push_back(f->token);
    if (!follow(s)) {
      events_.committed.pop_back();
      return fail(job, Code::bad_request, job.why);
    }
    s.slot = take_slot(&s);
    s.kv = n;
    if (!write_state(s.slot, r->blob.get(), layout_.blob_bytes(n), n, error)) {
      events_.committed.pop_back();
      return fail(job, Code::mismatch, error);
    }
    if (fresh) s.decoding = true;
    else job.replay.push_back(&s);
  }
  job.held_slots -= ended;
  give_back(ended);
  if (ended == job.sequences.size()) return retire(job, false);
  // Before those that wait for slots: they may wait for these very ones.
  if (!job.replay.empty()) queue_.push_front(&job);
}

}  // namespace dynact
