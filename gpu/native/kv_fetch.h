// The receiving side of a hand-off: one native thread copies blocks out of peers' pools into private memory and verifies that copy.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace dynact {

struct PoolDesc {
  std::string owner;  // incarnation of the exporting worker
  uint64_t epoch = 0;
  int pid = 0;
  int fd = 0;
  uint64_t bytes = 0;
};

struct BlockDesc {
  uint32_t index = 0;
  uint32_t tokens = 0;
  uint64_t offset = 0;
  uint32_t bytes = 0;
  uint64_t checksum = 0;
  uint64_t hash = 0;
};

enum class FetchStatus { ok, gone, mismatch, stopped };

struct FetchResult {
  FetchStatus status = FetchStatus::ok;
  std::string message;  // for people, names the block
};

// Copies one block out of the pool into memory of its own and returns the checksum of that copy, seeded with the block's hash: the
// owner may write to the pool at any moment. On the fetch thread. What it copied counts only once the whole fetch is ok.
using CopyBlock = std::function<uint64_t(const BlockDesc& block, const uint8_t* from)>;

class KvFetcher {
 public:
  static std::unique_ptr<KvFetcher> create();
  // Stops the thread: jobs not yet begun end with FetchStatus::stopped, on the calling thread.
  virtual ~KvFetcher() = default;
  // Queues a job (bounded: false when full). `done` runs once, on the fetch thread. Mappings are cached per (owner, epoch).
  virtual bool fetch(PoolDesc pool, std::vector<BlockDesc> blocks, CopyBlock copy, std::function<void(FetchResult&&)> done) = 0;
  // Queues work that needs no pool behind the fetches (bounded with them). `done` as above.
  virtual bool run(std::function<void()> work, std::function<void(FetchResult&&)> done) = 0;
  // Drops the mapping of a pool whose owner is gone.
  virtual void forget(const std::string& owner) = 0;
};

}  // namespace dynact
