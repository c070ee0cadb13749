#include "kv_index.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

namespace dynact {

namespace {

constexpr size_t kFirstCapacity = 8;
constexpr uint32_t kFirstMany = 3;
// What malloc keeps for itself per block, on average.
constexpr size_t kMallocBytes = 16;
// How far ahead of a walk the table is fetched into the cache: a lookup is memory latency and little else.
constexpr size_t kAhead = 6;
// A table that grows leaves this share of the bytes to blocks held by several workers.
constexpr size_t kTableShare = 4;

constexpr uint64_t holder_of(uint32_t slot, uint32_t tiers, uint32_t expires) {
  return static_cast<uint64_t>(slot) << 35 | static_cast<uint64_t>(tiers) << 32 | expires;
}
constexpr uint32_t slot_of(uint64_t holder) { return static_cast<uint32_t>(holder >> 35) & ((1u << 27) - 1); }
constexpr uint32_t tiers_of(uint64_t holder) { return static_cast<uint32_t>(holder >> 32) & ((1u << kTiers) - 1); }
constexpr uint32_t expires_of(uint64_t holder) { return static_cast<uint32_t>(holder); }

// A quarter stays free: chains of full places grow fast beyond that.
constexpr size_t room(size_t capacity) { return capacity - capacity / 4; }

}  // namespace

KvIndex::KvIndex(size_t max_bytes) : max_bytes_(max_bytes), segments_(size_t{1} << kSegmentBits) {
  if (max_bytes < kLeastBytes) throw std::invalid_argument("an index needs at least 64 KiB");
  for (Segment& segment : segments_) resize(segment, kFirstCapacity);
}

KvIndex::~KvIndex() {
  for (Segment& segment : segments_) {
    for (size_t i = 0; i < segment.capacity; i++) {
      if (segment.entries[i].ref & kSpilled) std::free(many(segment.entries[i].ref));
    }
  }
}

uint32_t KvIndex::open() {
  if (free_slots_.empty() && slots_.size() == kMostWorkers && closed_holders_ > 0) sweep(~size_t{0}, 0);
  uint32_t slot;
  if (!free_slots_.empty()) {
    slot = free_slots_.back();
    free_slots_.pop_back();
  } else if (slots_.size() < kMostWorkers) {
    slot = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
    runs_.emplace_back();
    free_slots_.reserve(slots_.size());  // so that returning one never fails
  } else {
    return kMostWorkers;
  }
  slots_[slot].open = true;
  return slot;
}

void KvIndex::close(uint32_t number) {
  if (!is_open(number)) return;
  Slot& slot = slots_[number];
  slot.open = false;
  std::fill(slot.blocks, slot.blocks + kTiers, 0);
  if (slot.holders == 0) free_slots_.push_back(number);
  closed_holders_ += slot.holders;
}

// ---- the table

size_t KvIndex::home(uint64_t key, size_t capacity) {
  return static_cast<size_t>(static_cast<unsigned __int128>(key << kSegmentBits) * capacity >> 64);
}

void KvIndex::fetch(uint64_t hash) const {
  const uint64_t key = key_of(hash);
  const Segment& segment = segments_[key >> (64 - kSegmentBits)];
  __builtin_prefetch(&segment.entries[home(key, segment.capacity)]);
}

KvIndex::Entry* KvIndex::lookup(Segment& segment, uint64_t key) {
  for (size_t at = home(key, segment.capacity);;) {
    Entry& entry = segment.entries[at];
    if (entry.ref == 0) return nullptr;
    if (entry.key == key) return &entry;
    if (++at == segment.capacity) at = 0;
  }
}

void KvIndex::resize(Segment& segment, size_t capacity) {
  std::unique_ptr<Entry[]> entries(new Entry[capacity]());
  for (size_t i = 0; i < segment.capacity; i++) {
    const Entry& entry = segment.entries[i];
    if (entry.ref == 0) continue;
    size_t at = home(entry.key, capacity);
    while (entries[at].ref != 0) at = at + 1 == capacity ? 0 : at + 1;
    entries[at] = entry;
  }
  bytes_ = bytes_ + capacity * sizeof(Entry) - segment.capacity * sizeof(Entry);
  segment.entries = std::move(entries);
  segment.capacity = capacity;
  segment.hand = 0;
}

// The entry of a key; a new one has ref 0, which the caller must set. Null: no room, and nothing to evict.
KvIndex::Entry* KvIndex::place(Segment& segment, uint64_t key, uint32_t now) {
  size_t at = home(key, segment.capacity);
  for (; segment.entries[at].ref != 0; at = at + 1 == segment.capacity ? 0 : at + 1) {
    if (segment.entries[at].key == key) return &segment.entries[at];
  }
  if (segment.count >= room(segment.capacity)) {
    const size_t larger = segment.capacity + segment.capacity / 2;
    // Old and new exist together for a moment.
    const bool fits = bytes_ + larger * sizeof(Entry) <= max_bytes_ - max_bytes_ / kTableShare;
    if (fits) resize(segment, larger);
    else if (!evict(segment, now)) return nullptr;
    at = home(key, segment.capacity);
    while (segment.entries[at].ref != 0) at = at + 1 == segment.capacity ? 0 : at + 1;
  }
  segment.entries[at].key = key;
  segment.count++;
  nodes_++;
  return &segment.entries[at];
}

// Takes an entry out, its holders counted out already, and closes the hole: entries behind it move up unless that would put them
// before their home.
void KvIndex::erase(Segment& segment, size_t hole) {
  const size_t capacity = segment.capacity;
  const auto distance = [capacity](size_t from, size_t to) { return to >= from ? to - from : to + capacity - from; };
  for (size_t at = hole;;) {
    if (++at == capacity) at = 0;
    const Entry& entry = segment.entries[at];
    if (entry.ref == 0) break;
    if (distance(home(entry.key, capacity), at) < distance(hole, at)) continue;
    segment.entries[hole] = entry;
    hole = at;
  }
  segment.entries[hole].ref = 0;
  segment.count--;
  nodes_--;
}

// ---- holders

size_t KvIndex::bytes_of(uint32_t capacity) { return offsetof(Many, holders) + capacity * sizeof(Holder) + kMallocBytes; }

KvIndex::Many* KvIndex::allocate(uint32_t capacity, const Segment* keep, uint32_t now) {
  const size_t bytes = bytes_of(capacity);
  // Other parts give way; `keep` holds the entry that grows. A bounded try: an index of single holders has nothing to give.
  for (int tries = 0; bytes_ + bytes > max_bytes_ && tries < 16; tries++) {
    spill_segment_ = (spill_segment_ + 1) % segments_.size();
    if (&segments_[spill_segment_] != keep) evict(segments_[spill_segment_], now);
  }
  if (bytes_ + bytes > max_bytes_) return nullptr;
  auto* block = static_cast<Many*>(std::malloc(bytes - kMallocBytes));
  if (block == nullptr) throw std::bad_alloc();
  block->capacity = capacity;
  block->count = 0;
  bytes_ += bytes;
  return block;
}

void KvIndex::release(Many* block) {
  bytes_ -= bytes_of(block->capacity);
  std::free(block);
}

bool KvIndex::stands(Holder holder, uint32_t now) const { return slots_[slot_of(holder)].open && expires_of(holder) > now; }

void KvIndex::count_in(Holder holder) {
  Slot& slot = slots_[slot_of(holder)];
  slot.holders++;
  holders_++;
  for (uint32_t tier = 0; tier < kTiers; tier++) slot.blocks[tier] += tiers_of(holder) >> tier & 1;
}

void KvIndex::count_out(Holder holder) {
  const uint32_t number = slot_of(holder);
  Slot& slot = slots_[number];
  slot.holders--;
  holders_--;
  if (slot.open) {
    for (uint32_t tier = 0; tier < kTiers; tier++) slot.blocks[tier] -= tiers_of(holder) >> tier & 1;
    return;
  }
  closed_holders_--;
  if (slot.holders == 0) free_slots_.push_back(number);
}

// Drops the holders that no longer stand; returns how many are left. With none left the entry must be erased.
size_t KvIndex::prune(Entry& entry, uint32_t now) {
  if (!(entry.ref & kSpilled)) {
    const Holder holder = entry.ref & kHolderBits;
    if (stands(holder, now)) return 1;
    count_out(holder);
    return 0;
  }
  Many* block = many(entry.ref);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < block->count; i++) {
    if (stands(block->holders[i], now)) block->holders[kept++] = block->holders[i];
    else count_out(block->holders[i]);
  }
  block->count = kept;
  if (kept > 1) return kept;
  const uint64_t touched = entry.ref & kTouched;
  // One is held in place again; with none left the caller erases the entry, which then points nowhere.
  entry.ref = touched | (kept == 1 ? block->holders[0] : kTouched);
  release(block);
  return kept;
}

// Adds a holder, or a tier and a new end of life to the one that is there. False: no memory, nothing has changed.
bool KvIndex::hold(Entry& entry, Holder fresh, uint32_t now) {
  const auto renew = [&](Holder& there) {
    const uint32_t before = tiers_of(there);
    const uint32_t after = (stands(there, now) ? before : 0) | tiers_of(fresh);
    if (after == before) repeated_++;
    uint64_t* blocks = slots_[slot_of(fresh)].blocks;
    for (uint32_t tier = 0; tier < kTiers; tier++) blocks[tier] = blocks[tier] + (after >> tier & 1) - (before >> tier & 1);
    there = holder_of(slot_of(fresh), after, expires_of(fresh));
  };
  if (entry.ref == 0) {
    // On probation: what is stored once and never asked for makes room before what is used.
    entry.ref = fresh;
  } else if (!(entry.ref & kSpilled)) {
    Holder there = entry.ref & kHolderBits;
    if (slot_of(there) == slot_of(fresh)) {
      renew(there);
      entry.ref = there | kTouched;
      return true;
    }
    if (!stands(there, now)) {
      count_out(there);
      entry.ref = fresh | kTouched;
    } else {
      Many* block = allocate(kFirstMany, &segment_of(entry.key), now);
      if (block == nullptr) return false;
      block->holders[block->count++] = there;
      block->holders[block->count++] = fresh;
      entry.ref = reinterpret_cast<uint64_t>(block) | kSpilled | kTouched;
    }
  } else {
    Many* block = many(entry.ref);
    uint32_t stale = block->count;
    for (uint32_t i = 0; i < block->count; i++) {
      if (slot_of(block->holders[i]) == slot_of(fresh)) {
        renew(block->holders[i]);
        entry.ref |= kTouched;
        return true;
      }
      if (!stands(block->holders[i], now)) stale = i;
    }
    if (stale < block->count) {
      count_out(block->holders[stale]);
      block->holders[stale] = fresh;
    } else {
      if (block->count == block->capacity) {
        Many* larger = allocate(block->capacity * 2 + 1, &segment_of(entry.key), now);
        if (larger == nullptr) return false;
        std::copy(block->holders, block->holders + block->count, larger->holders);
        larger->count = block->count;
        release(block);
        block = larger;
        entry.ref = reinterpret_cast<uint64_t>(block) | kSpilled;
      }
      block->holders[block->count++] = fresh;
    }
    entry.ref |= kTouched;
  }
  count_in(fresh);
  return true;
}

// ---- giving way

// Takes one entry out of a segment: the first that holds nothing any more or was not touched since the hand last passed.
bool KvIndex::evict(Segment& segment, uint32_t now) {
  for (size_t step = 0; step < 2 * segment.capacity; step++) {
    if (segment.hand >= segment.capacity) segment.hand = 0;
    Entry& entry = segment.entries[segment.hand];
    if (entry.ref != 0) {
      if (prune(entry, now) == 0) {
        erase(segment, segment.hand);
        return true;
      }
      if (!(entry.ref & kTouched)) {
        if (entry.ref & kSpilled) {
          Many* block = many(entry.ref);
          for (uint32_t i = 0; i < block->count; i++) count_out(block->holders[i]);
          release(block);
        } else {
          count_out(entry.ref & kHolderBits);
        }
        erase(segment, segment.hand);
        evicted_++;
        return true;
      }
      entry.ref &= ~kTouched;
    }
    segment.hand++;
  }
  return false;
}

// Looks at so many places and holders of the table for those that do not stand. Closing a hole may move an entry past the sweep; the next
// round finds it.
void KvIndex::sweep(size_t looks, uint32_t now) {
  size_t rounds = 0;
  while (looks > 0 && (closed_holders_ > 0 || expiring_) && rounds <= segments_.size()) {
    Segment& segment = segments_[sweep_segment_];
    while (sweep_at_ < segment.capacity && looks > 0) {
      Entry& entry = segment.entries[sweep_at_];
      looks -= std::min<size_t>(looks, entry.ref & kSpilled ? many(entry.ref)->count : 1);
      if (entry.ref != 0 && prune(entry, now) == 0) erase(segment, sweep_at_);
      else sweep_at_++;
    }
    if (sweep_at_ < segment.capacity) return;
    if (segment.capacity > kFirstCapacity && segment.count < segment.capacity / 6) {
      resize(segment, std::max(kFirstCapacity, segment.capacity / 2));
    }
    sweep_at_ = 0;
    sweep_segment_ = (sweep_segment_ + 1) % segments_.size();
    rounds++;
  }
}

// ---- what the world sees

void KvIndex::store(uint32_t slot, uint32_t tier, const uint64_t* hashes, size_t count, uint32_t now, uint32_t expires) {
  if (expires != kNeverExpires) expiring_ = true;
  const Holder holder = holder_of(slot, 1u << tier, expires);
  for (size_t i = 1; i < std::min(kAhead, count); i++) fetch(hashes[i]);
  for (size_t i = 0; i < count; i++) {
    if (i + kAhead < count) fetch(hashes[i + kAhead]);
    const uint64_t key = key_of(hashes[i]);
    Segment& segment = segment_of(key);
    Entry* entry = place(segment, key, now);
    if (entry == nullptr || !hold(*entry, holder, now)) refused_++;
  }
  // Garbage is swept faster than blocks come in.
  sweep(2 * count + 16, now);
}

void KvIndex::remove(uint32_t number, uint32_t tier, const uint64_t* hashes, size_t count) {
  const uint64_t bit = 1ull << (32 + tier);
  Slot& slot = slots_[number];
  for (size_t i = 1; i < std::min(kAhead, count); i++) fetch(hashes[i]);
  for (size_t i = 0; i < count; i++) {
    if (i + kAhead < count) fetch(hashes[i + kAhead]);
    const uint64_t key = key_of(hashes[i]);
    Segment& segment = segment_of(key);
    Entry* entry = lookup(segment, key);
    Holder* holder = nullptr;
    Many* block = nullptr;
    if (entry != nullptr && !(entry->ref & kSpilled)) {
      if (slot_of(entry->ref) == number) holder = &entry->ref;
    } else if (entry != nullptr) {
      block = many(entry->ref);
      for (uint32_t at = 0; at < block->count && holder == nullptr; at++) {
        if (slot_of(block->holders[at]) == number) holder = &block->holders[at];
      }
    }
    if (holder == nullptr || !(*holder & bit)) {
      unknown_++;
      continue;
    }
    *holder &= ~bit;
    slot.blocks[tier]--;
    if (tiers_of(*holder) != 0) continue;
    slot.holders--;
    holders_--;
    if (block == nullptr) {
      erase(segment, static_cast<size_t>(entry - segment.entries.get()));
      if (segment.capacity > kFirstCapacity && segment.count < segment.capacity / 6) {
        resize(segment, std::max(kFirstCapacity, segment.capacity / 2));
      }
      continue;
    }
    *holder = block->holders[--block->count];
    if (block->count > 1) continue;
    // A block of several holds two at least, so one is left: in place again.
    entry->ref = block->holders[0] | (entry->ref & kTouched);
    release(block);
  }
  sweep(count + 16, 0);
}

// Holders of two blocks in the same order, on the same tiers, to the same end: what blocks of one prompt mostly have.
bool KvIndex::alike(uint64_t a, uint64_t b) {
  if (((a | b) & kSpilled) == 0) return ((a ^ b) & kHolderBits) == 0;
  if ((a & b & kSpilled) == 0) return false;
  const Many *x = many(a), *y = many(b);
  return x->count == y->count && std::memcmp(x->holders, y->holders, x->count * sizeof(Holder)) == 0;
}

template <class Each>
void KvIndex::each_holder(uint64_t ref, Each each) {
  if (!(ref & kSpilled)) return each(ref & kHolderBits);
  const Many* block = many(ref);
  for (uint32_t i = 0; i < block->count; i++) each(block->holders[i]);
}

const std::vector<Overlap>& KvIndex::find(const uint64_t* hashes, size_t count, uint32_t now) {
  found_.clear();
  answer_.clear();
  if (++stamp_ == 0) {
    std::fill(runs_.begin(), runs_.end(), Run{});
    stamp_ = 1;
  }
  // Blocks `from` to the one at hand are held alike, as `ref` says: whoever had `from` has them all, and only `from` was looked at.
  uint64_t ref = 0;
  uint32_t from = 0;
  const auto settle = [&](uint32_t end) {
    if (end <= from + 1) return;
    each_holder(ref, [&](Holder holder) {
      Run& run = runs_[slot_of(holder)];
      if (run.stamp != stamp_) return;
      for (uint32_t& each : run.end) each = each == from + 1 ? end : each;
    });
  };
  for (size_t i = 1; i < std::min(kAhead, count); i++) fetch(hashes[i]);
  uint32_t i = 0;
  for (; i < count; i++) {
    if (i + kAhead < count) fetch(hashes[i + kAhead]);
    const uint64_t key = key_of(hashes[i]);
    Entry* entry = lookup(segment_of(key), key);
    if (entry == nullptr) break;
    if (!(entry->ref & kTouched)) entry->ref |= kTouched;
    if (i > 0 && alike(ref, entry->ref)) continue;
    settle(i);
    ref = entry->ref;
    from = i;
    bool any = false;
    each_holder(ref, [&](Holder holder) {
      if (!stands(holder, now)) return;
      const uint32_t slot = slot_of(holder);
      Run& run = runs_[slot];
      if (i == 0) {
        run = Run{stamp_, {}};
        found_.push_back(slot);
      } else if (run.stamp != stamp_ || run.end[kTiers - 1] != i) {
        return;
      }
      // A run of level t goes on over blocks on tier t or nearer.
      const uint32_t tiers = tiers_of(holder);
      uint32_t nearer = 1;
      for (uint32_t tier = 0; tier < kTiers; tier++, nearer = nearer << 1 | 1) {
        if ((tiers & nearer) && run.end[tier] == i) run.end[tier] = i + 1;
      }
      any = true;
    });
    if (!any) break;
  }
  settle(i);
  for (const uint32_t slot : found_) {
    const Run& run = runs_[slot];
    answer_.push_back({slot, {run.end[0], run.end[1] - run.end[0], run.end[2] - run.end[1]}});
  }
  return answer_;
}

IndexStats KvIndex::stats() const {
  const size_t own = segments_.size() * sizeof(Segment) + slots_.capacity() * (sizeof(Slot) + sizeof(Run));
  return {nodes_, holders_, bytes_ + own, evicted_, refused_, unknown_, repeated_};
}

}  // namespace dynact
