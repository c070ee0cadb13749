// Prefix cache: blocks of KV as bytes in host memory, keyed by sequence hash, least recently used out first. Only blocks that
// prefill computed enter (design 6.3), so a hit gives the very bytes a recomputation would. Thread-safe.
#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace dynact {

// A cached block; holding it keeps the bytes alive after eviction.
using CachedBlock = std::shared_ptr<const uint8_t>;

class PrefixCache {
 public:
  PrefixCache(size_t block_bytes, size_t max_bytes);

  // The longest run of cached blocks from the first on, at most `count`; marks them as used.
  std::vector<CachedBlock> find(const uint64_t* hashes, size_t count);
  bool has(uint64_t hash);
  // Lets `fill` write a block's bytes unless the block is there already. Nothing happens if there is no room for even one.
  void put(uint64_t hash, const std::function<void(uint8_t*)>& fill);
  // The same without a copy: the cache shares the bytes, which nobody may change any more.
  void adopt(uint64_t hash, CachedBlock bytes);
  size_t blocks() const;

 private:
  struct Entry {
    uint64_t hash;
    CachedBlock bytes;
  };
  // Freed blocks are kept for reuse: fresh pages cost ten times the copy itself.
  struct Shelf {
    std::mutex mutex;
    std::vector<std::unique_ptr<uint8_t[]>> spare;
  };
  std::shared_ptr<uint8_t> allocate();

  const size_t block_bytes_, max_blocks_;
  std::shared_ptr<Shelf> shelf_;
  mutable std::mutex mutex_;
  std::list<Entry> lru_;  // most recently used first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> index_;
};

}  // namespace dynact
