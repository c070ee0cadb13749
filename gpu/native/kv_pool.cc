#include "kv_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <vector>

// Linux 5.1; older libc headers lack the name.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace dynact {
namespace {

// Slots start on cache lines, so that neighbours never share one and copies are aligned.
constexpr size_t kAlign = 64;

std::string failed(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

class SealedPool final : public KvPool {
 public:
  SealedPool(int fd, uint8_t* base, size_t bytes, size_t slot_bytes, size_t stride, size_t slots)
      : fd_(fd), base_(base), bytes_(bytes), slot_bytes_(slot_bytes), stride_(stride), taken_(slots, false) {
    free_.reserve(slots);
    for (size_t slot = slots; slot > 0; --slot) free_.push_back(static_cast<uint32_t>(slot - 1));
  }

  ~SealedPool() override {
    munmap(base_, bytes_);
    close(fd_);
  }

  int fd() const override { return fd_; }
  size_t bytes() const override { return bytes_; }
  size_t slot_bytes() const override { return slot_bytes_; }

  int64_t take() override {
    std::lock_guard lock(mutex_);
    if (free_.empty()) return -1;
    const uint32_t slot = free_.back();
    free_.pop_back();
    taken_[slot] = true;
    return static_cast<int64_t>(PoolHeader::kBytes + slot * stride_);
  }

  bool give(uint64_t offset) override {
    if (offset < PoolHeader::kBytes || (offset - PoolHeader::kBytes) % stride_ != 0) return false;
    const uint64_t slot = (offset - PoolHeader::kBytes) / stride_;
    std::lock_guard lock(mutex_);
    if (slot >= taken_.size() || !taken_[slot]) return false;
    taken_[slot] = false;
    free_.push_back(static_cast<uint32_t>(slot));
    return true;
  }

  size_t used() const override {
    std::lock_guard lock(mutex_);
    return taken_.size() - free_.size();
  }

  uint8_t* at(uint64_t offset) override { return base_ + offset; }

 private:
  const int fd_;
  uint8_t* const base_;
  const size_t bytes_;
  const size_t slot_bytes_;
  const size_t stride_;
  mutable std::mutex mutex_;
  std::vector<uint32_t> free_;
  std::vector<bool> taken_;
};

}  // namespace

std::unique_ptr<KvPool> KvPool::create(size_t slot_bytes, size_t slots, std::string& error, std::string_view owner,
                                       uint64_t epoch) {
  PoolHeader header;
  if (owner.size() >= sizeof header.owner) {
    error = "the owner's name is longer than 64 bytes";
    return nullptr;
  }
  constexpr size_t kMost = std::numeric_limits<int64_t>::max() / 2;
  if (slot_bytes == 0 || slots == 0 || slots > std::numeric_limits<uint32_t>::max() || slot_bytes > kMost / slots - kAlign) {
    error = "a pool of " + std::to_string(slots) + " slots of " + std::to_string(slot_bytes) + " bytes cannot be";
    return nullptr;
  }
  const size_t stride = (slot_bytes + kAlign - 1) / kAlign * kAlign;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = (PoolHeader::kBytes + stride * slots + page - 1) / page * page;

  const int fd = memfd_create("dynact-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    error = failed("memfd_create");
    return nullptr;
  }
  void* base = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    error = failed("ftruncate");
  } else if ((base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) {
    error = failed("mmap");
    // Sealed after mapping: F_SEAL_FUTURE_WRITE leaves this mapping writable and refuses every later one.
  } else if (fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    error = failed("F_ADD_SEALS");
    munmap(base, bytes);
    base = MAP_FAILED;
  }
  if (base == MAP_FAILED) {
    close(fd);
    return nullptr;
  }
  header.epoch = epoch;
  header.bytes = bytes;
  std::memcpy(header.owner, owner.data(), owner.size());
  std::memcpy(base, &header, sizeof header);
  return std::make_unique<SealedPool>(fd, static_cast<uint8_t*>(base), bytes, slot_bytes, stride, slots);
}

}  // namespace dynact
