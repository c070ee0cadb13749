#include "prefix_cache.h"

#include <cstring>
#include <iterator>
#include <utility>

namespace dynact {

// Blocks on their way in, or held by a reader after their eviction, beyond those that the cache holds.
constexpr size_t kPassing = 64;

PrefixCache::PrefixCache(size_t block_bytes, size_t max_bytes)
    : max_blocks_(max_bytes / block_bytes), arena_(HostArena::create(block_bytes, max_blocks_ + kPassing)) {}

std::vector<PrefixCache::Place> PrefixCache::run(PromptRef prompt, size_t count) {
  std::vector<Place> found;
  uint64_t before = 0;
  for (size_t i = 0; i < count; i++) {
    auto hit = index_.find(prompt.hashes[i]);
    if (hit == index_.end()) break;
    const Entry& entry = *hit->second;
    if (entry.follows != before || std::memcmp(entry.tokens.data(), prompt.tokens + i * kBlockTokens, sizeof entry.tokens) != 0) break;
    found.push_back(hit->second);
    before = entry.serial;
  }
  return found;
}

std::vector<CachedBlock> PrefixCache::find(PromptRef prompt, size_t count) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<CachedBlock> blocks;
  const std::vector<Place> places = run(prompt, count);
  blocks.reserve(places.size());
  for (Place place : places) blocks.push_back(place->bytes);
  // Last block first, so that the first one ends up most recent: a prefix is never evicted before what follows it.
  for (size_t i = places.size(); i-- > 0;) lru_.splice(lru_.begin(), lru_, places[i]);
  return blocks;
}

size_t PrefixCache::covered(PromptRef prompt, size_t count) {
  std::lock_guard<std::mutex> lock(mutex_);
  return run(prompt, count).size();
}

void PrefixCache::put(PromptRef prompt, size_t from, const std::vector<CachedBlock>& blocks) {
  if (max_blocks_ == 0) return;
  const size_t end = from + blocks.size();
  std::vector<CachedBlock> gone;  // declared before the lock, so freed after it
  std::lock_guard<std::mutex> lock(mutex_);
  const std::vector<Place> here = run(prompt, end);
  if (here.size() < from) return;
  // At most one leaves for one that enters; taken here, so that nothing fails halfway.
  changes_.reserve(changes_.size() + 2 * (end - here.size()));
  for (size_t i = here.size(); i-- > 0;) lru_.splice(lru_.begin(), lru_, here[i]);
  Place before = here.empty() ? lru_.end() : here.back();
  for (size_t i = here.size(); i < end; i++) {
    auto other = index_.find(prompt.hashes[i]);
    // A block of this hash that is not ours: of another prompt, or orphaned when the block before it was evicted.
    Place victim = other != index_.end() ? other->second : lru_.size() < max_blocks_ ? lru_.end() : std::prev(lru_.end());
    if (victim != lru_.end() && victim == before) return;
    std::list<Entry> fresh;
    fresh.push_front({prompt.hashes[i], ++serials_, before == lru_.end() ? 0 : before->serial, {}, blocks[i - from]});
    std::memcpy(fresh.front().tokens.data(), prompt.tokens + i * kBlockTokens, sizeof fresh.front().tokens);
    if (victim != lru_.end()) {
      gone.push_back(std::move(victim->bytes));
      changes_.push_back({victim->hash, false});
      index_.erase(victim->hash);
      lru_.erase(victim);
    }
    index_[prompt.hashes[i]] = fresh.begin();
    changes_.push_back({prompt.hashes[i], true});
    const Place at = before == lru_.end() ? lru_.begin() : std::next(before);
    lru_.splice(at, fresh);
    before = std::prev(at);
  }
}

std::vector<CacheChange> PrefixCache::changes() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(changes_, {});
}

size_t PrefixCache::blocks() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return lru_.size();
}

}  // namespace dynact
