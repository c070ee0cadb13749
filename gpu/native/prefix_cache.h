// Prefix cache: blocks of KV as bytes in host memory, found by sequence hash, least recently used out first. Only blocks that
// prefill computed enter (design 6.3), so a hit gives the very bytes a recomputation would. A hash only finds: every hit is
// compared token by token, and with the block it follows, so two prompts whose hashes collide never share KV. Thread-safe.
#pragma once
#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "host_arena.h"

namespace dynact {

constexpr uint32_t kBlockTokens = 64;

// A cached block; holding it keeps the bytes alive after eviction.
using CachedBlock = std::shared_ptr<const uint8_t>;

// What a prompt is called here: the hashes of its blocks and its tokens, at least kBlockTokens for each block asked for.
struct PromptRef {
  const uint64_t* hashes;
  const int32_t* tokens;
};

// A block entered or left; its hash is chained, so it names the whole prefix.
struct CacheChange {
  uint64_t hash;
  bool stored;
};

class PrefixCache {
 public:
  PrefixCache(size_t block_bytes, size_t max_bytes);

  // The longest run of the prompt's cached blocks from the first on, at most `count`; marks them as used.
  std::vector<CachedBlock> find(PromptRef prompt, size_t count);
  // How many blocks that run has; nothing is marked.
  size_t covered(PromptRef prompt, size_t count);
  // Adds those of the prompt's whole blocks from `from` on that are missing; nobody may change their bytes any more. Stops where a
  // block could only stay by evicting one that it follows, or follows one that is not here.
  void put(PromptRef prompt, size_t from, const std::vector<CachedBlock>& blocks);
  // Memory for one block, to be filled and put.
  std::shared_ptr<uint8_t> allocate() { return arena_->take(); }
  size_t blocks() const;
  size_t capacity() const { return max_blocks_; }
  // What entered and left since the last call, in order.
  std::vector<CacheChange> changes();

 private:
  struct Entry {
    uint64_t hash;
    uint64_t serial;   // of this entry, never used again
    uint64_t follows;  // serial of the block before it; 0 for a first block
    std::array<int32_t, kBlockTokens> tokens;
    CachedBlock bytes;
  };
  using Place = std::list<Entry>::iterator;
  std::vector<Place> run(PromptRef prompt, size_t count);

  const size_t max_blocks_;
  const std::shared_ptr<HostArena> arena_;
  mutable std::mutex mutex_;
  std::list<Entry> lru_;  // most recently used first; a prefix always before what follows it
  std::unordered_map<uint64_t, Place> index_;
  uint64_t serials_ = 0;
  std::vector<CacheChange> changes_;
};

}  // namespace dynact
