#include "prefix_cache.h"

namespace dynact {

PrefixCache::PrefixCache(size_t block_bytes, size_t max_bytes)
    : block_bytes_(block_bytes), max_blocks_(max_bytes / block_bytes), shelf_(std::make_shared<Shelf>()) {}

std::shared_ptr<uint8_t> PrefixCache::allocate() {
  std::unique_ptr<uint8_t[]> bytes;
  {
    std::lock_guard<std::mutex> lock(shelf_->mutex);
    if (!shelf_->spare.empty()) {
      bytes = std::move(shelf_->spare.back());
      shelf_->spare.pop_back();
    }
  }
  if (!bytes) bytes.reset(new uint8_t[block_bytes_]);
  // The shelf outlives the cache for blocks that a reader still holds; it keeps few, the rest goes back to the system.
  return {bytes.release(), [shelf = shelf_](uint8_t* p) {
            std::unique_ptr<uint8_t[]> owned(p);
            std::lock_guard<std::mutex> lock(shelf->mutex);
            if (shelf->spare.size() < 64) shelf->spare.push_back(std::move(owned));
          }};
}

std::vector<CachedBlock> PrefixCache::find(const uint64_t* hashes, size_t count) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<CachedBlock> found;
  for (size_t i = 0; i < count; i++) {
    auto hit = index_.find(hashes[i]);
    if (hit == index_.end()) break;
    found.push_back(hit->second->bytes);
  }
  // Last block first, so that the first one ends up most recent: a prefix is never evicted before what follows it.
  for (size_t i = found.size(); i-- > 0;) lru_.splice(lru_.begin(), lru_, index_[hashes[i]]);
  return found;
}

bool PrefixCache::has(uint64_t hash) {
  std::lock_guard<std::mutex> lock(mutex_);
  return index_.count(hash) > 0;
}

void PrefixCache::put(uint64_t hash, const std::function<void(uint8_t*)>& fill) {
  if (max_blocks_ == 0 || has(hash)) return;
  std::shared_ptr<uint8_t> copy = allocate();
  fill(copy.get());
  adopt(hash, std::move(copy));
}

void PrefixCache::adopt(uint64_t hash, CachedBlock bytes) {
  if (max_blocks_ == 0) return;
  CachedBlock evicted;  // declared before the lock, so freed after it
  std::lock_guard<std::mutex> lock(mutex_);
  if (index_.count(hash)) return;
  if (lru_.size() >= max_blocks_) {
    evicted = std::move(lru_.back().bytes);
    index_.erase(lru_.back().hash);
    lru_.pop_back();
  }
  lru_.push_front({hash, std::move(bytes)});
  index_[hash] = lru_.begin();
}

size_t PrefixCache::blocks() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return lru_.size();
}

}  // namespace dynact
