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
  // Private copies, each verified against its checksum; empty unless status is ok.
  std::vector<std::pair<BlockDesc, std::vector<uint8_t>>> blocks;
};

class KvFetcher {
 public:
  static std::unique_ptr<KvFetcher> create();
  // Stops the thread: jobs not yet begun end with FetchStatus::stopped, on the calling thread.
  virtual ~KvFetcher() = default;
  // Queues a job (bounded: false when full). `done` runs once, on the fetch thread. Mappings are cached per (owner, epoch).
  virtual bool fetch(PoolDesc pool, std::vector<BlockDesc> blocks, std::function<void(FetchResult&&)> done) = 0;
  // Drops the mapping of a pool whose owner is gone.
  virtual void forget(const std::string& owner) = 0;
};

}  // namespace dynact
