#include "host_arena.h"

#include <sys/mman.h>

#include <new>

namespace dynact {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

std::shared_ptr<HostArena> HostArena::create(size_t slot_bytes, size_t slots) {
  const size_t stride = (slot_bytes + kLine - 1) / kLine * kLine;
  size_t bytes = stride * slots;
  uint8_t* base = nullptr;
  if (bytes > 0) {
    bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    madvise(mapped, bytes, MADV_HUGEPAGE);  // advice: a system without huge pages refuses it, which costs time and nothing else
    base = static_cast<uint8_t*>(mapped);
  }
  return std::shared_ptr<HostArena>(new HostArena(base, bytes, slot_bytes, stride, slots));
}

HostArena::HostArena(uint8_t* base, size_t bytes, size_t slot_bytes, size_t stride, size_t slots)
    : base_(base), bytes_(bytes), slot_bytes_(slot_bytes), stride_(stride) {
  free_.reserve(slots);
  for (size_t slot = slots; slot > 0; slot--) free_.push_back(static_cast<uint32_t>(slot - 1));
}

HostArena::~HostArena() {
  if (base_) munmap(base_, bytes_);
}

std::shared_ptr<uint8_t> HostArena::take() {
  uint32_t slot;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return {new uint8_t[slot_bytes_], [](uint8_t* bytes) { delete[] bytes; }};
    slot = free_.back();
    free_.pop_back();
  }
  return {base_ + stride_ * slot, [arena = shared_from_this(), slot](uint8_t*) {
            std::lock_guard<std::mutex> lock(arena->mutex_);
            arena->free_.push_back(slot);
          }};
}

}  // namespace dynact
