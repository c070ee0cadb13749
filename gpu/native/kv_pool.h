// The export side of a hand-off: a memfd that only this process can write (sealed), cut into equal slots.
// Peers map it read-only and copy out (design 6.5): a superseded writer can never touch a block that has a new owner.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace dynact {

class KvPool {
 public:
  // Creates `slots` slots of `slot_bytes` each (rounded up to whole pages in all). Null and `error` on failure.
  static std::unique_ptr<KvPool> create(size_t slot_bytes, size_t slots, std::string& error);
  virtual ~KvPool() = default;
  virtual int fd() const = 0;
  virtual size_t bytes() const = 0;
  virtual size_t slot_bytes() const = 0;
  // Offset of a free slot, or -1 when none is left. Thread-safe, as are give() and used().
  virtual int64_t take() = 0;
  // Giving an offset that is not taken is refused (false): a double free is a bug, not a corruption.
  virtual bool give(uint64_t offset) = 0;
  virtual size_t used() const = 0;
  virtual uint8_t* at(uint64_t offset) = 0;
};

}  // namespace dynact
