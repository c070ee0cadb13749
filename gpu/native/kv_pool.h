// The export side of a hand-off: a memfd that only this process can write (sealed), cut into equal slots.
// Peers map it read-only and copy out (design 6.5): a superseded writer can never touch a block that has a new owner.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace dynact {

// First page of every pool, written before the first descriptor leaves.
struct PoolHeader {
  static constexpr uint64_t kMagic = 0x31304c4f4f505644;  // "DVPOOL01", little endian
  static constexpr size_t kBytes = 4096;
  uint64_t magic = kMagic;
  uint64_t epoch = 0;
  uint64_t bytes = 0;
  char owner[65] = {};
};

class KvPool {
 public:
  // Creates `slots` slots of `slot_bytes` each, behind a header page that names `owner` and `epoch`: a receiver refuses a pool
  // whose header differs, so a pid or fd number that was used again cannot pass for the one it was. Null and `error` on failure.
  static std::unique_ptr<KvPool> create(size_t slot_bytes, size_t slots, std::string& error, std::string_view owner = {},
                                        uint64_t epoch = 0);
  virtual ~KvPool() = default;
  virtual int fd() const = 0;
  // Size of the whole file, header included; offsets count from its start, so the first slot is not at 0.
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
