#include "kv_fetch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <new>
#include <thread>

#include "kv_pool.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace dynact {
namespace {

// Jobs that may wait; the next one is refused, and the caller's request fails over to another worker.
constexpr size_t kMaxJobs = 1024;
// Pools mapped at a time; the least recently used one is unmapped.
constexpr size_t kMaxMappings = 64;

struct Mapping {
  std::string owner;
  uint64_t epoch = 0;
  const uint8_t* base = nullptr;
  size_t bytes = 0;
  // Where it was found and what it was, to see later whether it is still there.
  std::string path;
  dev_t device = 0;
  ino_t inode = 0;

  // False once the owner has closed it or died: only our mapping keeps its memory then.
  bool alive() const {
    struct stat status = {};
    return stat(path.c_str(), &status) == 0 && status.st_dev == device && status.st_ino == inode;
  }

  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (base != nullptr) munmap(const_cast<uint8_t*>(base), bytes);
  }
};

struct Fd {
  int value = -1;
  ~Fd() {
    if (value >= 0) close(value);
  }
};

struct Refusal {
  FetchStatus status;
  std::string message;
};

[[noreturn]] void refuse(FetchStatus status, std::string message) { throw Refusal{status, std::move(message)}; }

// Maps a peer's pool read-only. A pid or fd number that now belongs to something else fails one of the checks.
std::shared_ptr<Mapping> map_pool(const PoolDesc& pool) {
  const std::string path = "/proc/" + std::to_string(pool.pid) + "/fd/" + std::to_string(pool.fd);
  // Looked at before it is opened: opening a device or a FIFO can have effects of its own.
  char target[64] = {};
  constexpr char kPrefix[] = "/memfd:dynact-kv";
  if (readlink(path.c_str(), target, sizeof target - 1) < 0) {
    refuse(FetchStatus::gone, "the pool's owner is gone: " + std::string(std::strerror(errno)));
  }
  if (std::strncmp(target, kPrefix, sizeof kPrefix - 1) != 0) refuse(FetchStatus::gone, "the pool's descriptor is something else now");
  Fd fd{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  if (fd.value < 0) refuse(FetchStatus::gone, "the pool cannot be opened: " + std::string(std::strerror(errno)));

  struct stat status = {};
  if (fstat(fd.value, &status) != 0 || !S_ISREG(status.st_mode)) refuse(FetchStatus::mismatch, "the pool is not a file");
  if (pool.bytes < PoolHeader::kBytes || static_cast<uint64_t>(status.st_size) != pool.bytes) {
    refuse(FetchStatus::mismatch, "the pool has " + std::to_string(status.st_size) + " bytes, not " + std::to_string(pool.bytes));
  }
  // Without these seals the owner could shrink it under our reads (SIGBUS), or somebody else write to it.
  const int seals = fcntl(fd.value, F_GET_SEALS);
  constexpr int kNeeded = F_SEAL_GROW | F_SEAL_SHRINK;
  if (seals < 0 || (seals & kNeeded) != kNeeded || (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) == 0) {
    refuse(FetchStatus::mismatch, "the pool is not sealed");
  }
  void* base = mmap(nullptr, pool.bytes, PROT_READ, MAP_SHARED, fd.value, 0);
  if (base == MAP_FAILED) refuse(FetchStatus::gone, "the pool cannot be mapped: " + std::string(std::strerror(errno)));
  auto mapping = std::make_shared<Mapping>();
  mapping->base = static_cast<const uint8_t*>(base);
  mapping->bytes = pool.bytes;
  mapping->owner = pool.owner;
  mapping->epoch = pool.epoch;
  mapping->path = path;
  mapping->device = status.st_dev;
  mapping->inode = status.st_ino;

  PoolHeader header;
  std::memcpy(&header, base, sizeof header);
  header.owner[sizeof header.owner - 1] = 0;
  if (header.magic != PoolHeader::kMagic || header.bytes != pool.bytes) refuse(FetchStatus::mismatch, "the pool has no valid header");
  if (pool.owner != header.owner || pool.epoch != header.epoch) {
    refuse(FetchStatus::gone, "the pool belongs to another owner or epoch now");
  }
  return mapping;
}

class Fetcher final : public KvFetcher {
 public:
  Fetcher() : thread_([this] { run(); }) {}

  ~Fetcher() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
    for (Job& job : jobs_) {
      FetchResult result;
      result.status = FetchStatus::stopped;
      result.message = "the fetcher is stopped";
      job.done(std::move(result));
    }
  }

  bool fetch(PoolDesc pool, std::vector<BlockDesc> blocks, CopyBlock copy, std::function<void(FetchResult&&)> done) override {
    auto work = [this, pool = std::move(pool), blocks = std::move(blocks), copy = std::move(copy)] { copy_all(pool, blocks, copy); };
    return run(std::move(work), std::move(done));
  }

  bool run(std::function<void()> work, std::function<void(FetchResult&&)> done) override {
    {
      std::lock_guard lock(mutex_);
      if (stopping_ || jobs_.size() >= kMaxJobs) return false;
      jobs_.push_back(Job{std::move(work), std::move(done)});
    }
    wake_.notify_one();
    return true;
  }

  void forget(const std::string& owner) override {
    std::lock_guard lock(mutex_);
    mappings_.remove_if([&](const auto& mapping) { return mapping->owner == owner; });
  }

 private:
  struct Job {
    std::function<void()> work;
    std::function<void(FetchResult&&)> done;
  };

  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      // What `done` throws (no memory, most likely) would end the process; it has told its owner what it could.
      try {
        job.done(result_of(job.work));
      } catch (...) {
      }
    }
  }

  static FetchResult result_of(const std::function<void()>& work) {
    try {
      work();
      return {};
    } catch (Refusal& refusal) {
      return {refusal.status, std::move(refusal.message)};
    } catch (const std::bad_alloc&) {
      return {FetchStatus::gone, "no memory for the copy"};
    }
  }

  void copy_all(const PoolDesc& pool, const std::vector<BlockDesc>& blocks, const CopyBlock& copy) {
    const std::shared_ptr<Mapping> mapping = mapping_of(pool);
    check_bounds(blocks, mapping->bytes);
    for (const BlockDesc& block : blocks) {
      if (copy(block, mapping->base + block.offset) != block.checksum) {
        refuse(FetchStatus::mismatch, "block " + std::to_string(block.index) + " fails its checksum");
      }
    }
  }

  static void check_bounds(const std::vector<BlockDesc>& blocks, size_t bytes) {
    uint64_t total = 0;
    for (const BlockDesc& block : blocks) {
      if (block.bytes == 0 || block.offset < PoolHeader::kBytes || block.offset > bytes || block.bytes > bytes - block.offset) {
        refuse(FetchStatus::mismatch, "block " + std::to_string(block.index) + " lies outside the pool");
      }
      total += block.bytes;
    }
    // Distinct blocks cannot hold more than the pool does; a list that repeats one must not make us allocate without bound.
    if (total > bytes) refuse(FetchStatus::mismatch, "the blocks are larger than their pool");
  }

  std::shared_ptr<Mapping> mapping_of(const PoolDesc& pool) {
    {
      std::lock_guard lock(mutex_);
      for (auto at = mappings_.begin(); at != mappings_.end(); ++at) {
        if ((*at)->owner != pool.owner || (*at)->epoch != pool.epoch) continue;
        if ((*at)->bytes != pool.bytes) refuse(FetchStatus::mismatch, "the pool has another size");
        mappings_.splice(mappings_.begin(), mappings_, at);
        return mappings_.front();
      }
    }
    auto mapping = map_pool(pool);
    std::lock_guard lock(mutex_);
    // An owner has one live pool: what it had before can never be asked for again. And a new pool often means that a worker was
    // restarted: the memory of its predecessor goes now, not when 64 others have come.
    mappings_.remove_if([&](const auto& other) { return other->owner == pool.owner || !other->alive(); });
    mappings_.push_front(mapping);
    if (mappings_.size() > kMaxMappings) mappings_.pop_back();
    return mapping;
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  std::list<std::shared_ptr<Mapping>> mappings_;
  bool stopping_ = false;
  // Last: it starts in the constructor and uses everything above.
  std::thread thread_;
};

}  // namespace

std::unique_ptr<KvFetcher> KvFetcher::create() { return std::make_unique<Fetcher>(); }

}  // namespace dynact
