// Host memory for KV, in equal slots that are used again and again: on a fresh page the first touch costs ten times the copy.
// Huge pages where the system grants them; pages that were never used cost nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace dynact {

class HostArena : public std::enable_shared_from_this<HostArena> {
 public:
  // Throws std::bad_alloc when the addresses cannot be had.
  static std::shared_ptr<HostArena> create(size_t slot_bytes, size_t slots);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // A slot with whatever was in it; with all of them taken, memory of its own. The arena lives as long as what it gave. Any thread.
  std::shared_ptr<uint8_t> take();

 private:
  HostArena(uint8_t* base, size_t bytes, size_t slot_bytes, size_t stride, size_t slots);

  uint8_t* const base_;
  const size_t bytes_, slot_bytes_, stride_;
  std::mutex mutex_;
  std::vector<uint32_t> free_;  // the slot that was given back last is taken first: its pages are warm
};

}  // namespace dynact
