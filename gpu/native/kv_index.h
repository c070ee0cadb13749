// Which workers hold which KV blocks. A block is named by its sequence hash, which is chained over everything before it: the name
// alone says where in which prompt the block is, so there is no tree, a parent may arrive after its children, and a block that was
// stored twice is one entry. One flat table from hash to holders; a lookup walks the prompt's hashes until no worker is left.
// Single-threaded.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace dynact {

constexpr uint32_t kTiers = 3;              // device, host, disk: from the nearest to the farthest
constexpr uint32_t kNeverExpires = ~0u;

// What one worker holds of a prompt from its first block on, without a hole. blocks[0] are on the device; blocks[1] come next and
// are on the device or the host; blocks[2] come after those, on any tier.
struct Overlap {
  uint32_t slot;
  uint32_t blocks[kTiers];
};

struct IndexStats {
  uint64_t nodes;     // blocks held by anybody
  uint64_t holders;   // (block, worker) pairs; those of workers that left count until they are swept
  uint64_t bytes;     // memory taken, the allocator's share estimated
  uint64_t evicted;   // blocks dropped to stay within max_bytes: possible missed hits
  uint64_t refused;   // (block, worker) pairs not recorded for want of memory: missed hits
  uint64_t unknown;   // removals of what was not there
  uint64_t repeated;  // stores of what was there already
};

// Bounded by bytes. Full, it evicts by second chance (CLOCK): a block that was neither found nor stored again since the hand
// last passed goes. An answer never names a block that its worker has not stored, or has removed since; it may miss evicted and refused ones.
class KvIndex {
 public:
  // Throws std::invalid_argument below kLeastBytes.
  explicit KvIndex(size_t max_bytes);
  ~KvIndex();
  KvIndex(const KvIndex&) = delete;
  KvIndex& operator=(const KvIndex&) = delete;
  static constexpr size_t kLeastBytes = 64 * 1024;
  static constexpr uint32_t kMostWorkers = 1u << 16;

  // A slot for a worker that holds nothing yet; kMostWorkers when all are taken.
  uint32_t open();
  // Forgets everything the worker holds, at once; its number is reused only after the last trace of it has been swept.
  void close(uint32_t slot);
  bool is_open(uint32_t slot) const { return slot < slots_.size() && slots_[slot].open; }

  // Times are ticks of the caller's clock. An entry stands while its `expires` is after `now`; storing again sets it anew.
  void store(uint32_t slot, uint32_t tier, const uint64_t* hashes, size_t count, uint32_t now = 0, uint32_t expires = kNeverExpires);
  void remove(uint32_t slot, uint32_t tier, const uint64_t* hashes, size_t count);
  // Every worker that holds the first block, in no particular order. The result lives until the next call.
  const std::vector<Overlap>& find(const uint64_t* hashes, size_t count, uint32_t now = 0);

  uint64_t blocks(uint32_t slot, uint32_t tier) const { return slots_[slot].blocks[tier]; }
  IndexStats stats() const;

 private:
  // Bits of a holder: 0-31 expires, 32-34 tiers, 35-61 slot. An entry holds one in place, or points to several.
  using Holder = uint64_t;
  static constexpr uint64_t kTouched = 1ull << 62, kSpilled = 1ull << 63, kHolderBits = kTouched - 1;
  struct Entry {
    uint64_t key;
    uint64_t ref;  // 0: free
  };
  struct Many {
    uint32_t count, capacity;
    Holder holders[1];
  };
  // The table is cut by the top bits of the key, so that growing stops the caller for the time of one part only.
  struct Segment {
    std::unique_ptr<Entry[]> entries;
    size_t capacity = 0, count = 0, hand = 0;
  };
  struct Slot {
    bool open = false;
    uint64_t holders = 0;
    uint64_t blocks[kTiers] = {};
  };
  struct Run {
    uint32_t stamp = 0;
    uint32_t end[kTiers] = {};
  };
  static constexpr int kSegmentBits = 8;

  static uint64_t key_of(uint64_t hash) { return hash * 0x9e3779b97f4a7c15ull; }
  static size_t home(uint64_t key, size_t capacity);
  Segment& segment_of(uint64_t key) { return segments_[key >> (64 - kSegmentBits)]; }
  void fetch(uint64_t hash) const;
  static Entry* lookup(Segment& segment, uint64_t key);
  static Many* many(uint64_t ref) { return reinterpret_cast<Many*>(ref & ((1ull << 48) - 1)); }
  static size_t bytes_of(uint32_t capacity);
  static bool alike(uint64_t a, uint64_t b);
  template <class Each>
  static void each_holder(uint64_t ref, Each each);

  bool stands(Holder holder, uint32_t now) const;
  Entry* place(Segment& segment, uint64_t key, uint32_t now);
  bool hold(Entry& entry, Holder holder, uint32_t now);
  Many* allocate(uint32_t capacity, const Segment* keep, uint32_t now);
  void release(Many* block);
  void count_in(Holder holder);
  void count_out(Holder holder);
  size_t prune(Entry& entry, uint32_t now);
  void erase(Segment& segment, size_t at);
  void resize(Segment& segment, size_t capacity);
  bool evict(Segment& segment, uint32_t now);
  void sweep(size_t looks, uint32_t now);

  const size_t max_bytes_;
  size_t bytes_ = 0;
  std::vector<Segment> segments_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<Run> runs_;
  std::vector<uint32_t> found_;
  std::vector<Overlap> answer_;
  uint32_t stamp_ = 0;
  uint64_t nodes_ = 0, holders_ = 0, closed_holders_ = 0;
  bool expiring_ = false;
  size_t sweep_segment_ = 0, sweep_at_ = 0, spill_segment_ = 0;
  uint64_t evicted_ = 0, refused_ = 0, unknown_ = 0, repeated_ = 0;
};

}  // namespace dynact
