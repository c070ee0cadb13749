// Block hashes, the sealed pool and the fetch thread, without Node and without libllama. Run under ASan and under TSan.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "../block_hash.h"
#include "../kv_fetch.h"
#include "../kv_pool.h"

using namespace dynact;

namespace {

int failures = 0;

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                     \
    }                                                                 \
  } while (0)

constexpr size_t kSlot = 1000;

std::unique_ptr<KvPool> make_pool(size_t slots, const char* owner = "worker-1", uint64_t epoch = 7) {
  std::string error;
  auto pool = KvPool::create(kSlot, slots, error, owner, epoch);
  if (pool == nullptr) {
    std::fprintf(stderr, "%s\n", error.c_str());
    std::exit(1);
  }
  return pool;
}

PoolDesc describe(const KvPool& pool, const char* owner = "worker-1", uint64_t epoch = 7) {
  return PoolDesc{owner, epoch, static_cast<int>(getpid()), pool.fd(), pool.bytes()};
}

BlockDesc export_block(KvPool& pool, uint32_t index, uint8_t fill) {
  const int64_t offset = pool.take();
  CHECK(offset >= 0);
  std::memset(pool.at(offset), fill, kSlot);
  BlockDesc block{index, 64, static_cast<uint64_t>(offset), kSlot, 0, 1000u + index};
  block.checksum = block_checksum(pool.at(offset), kSlot, block.hash);
  return block;
}

struct Fetched : FetchResult {
  std::vector<std::vector<uint8_t>> copies;
};

uint64_t unwanted(const BlockDesc& block, const uint8_t*) { return block.checksum; }

Fetched fetch(KvFetcher& fetcher, const PoolDesc& pool, std::vector<BlockDesc> blocks) {
  std::mutex mutex;
  std::condition_variable wake;
  bool ready = false;
  Fetched result;
  const auto copy = [&](const BlockDesc& block, const uint8_t* from) {
    result.copies.emplace_back(from, from + block.bytes);
    return block_checksum(result.copies.back().data(), block.bytes, block.hash);
  };
  const bool queued = fetcher.fetch(pool, std::move(blocks), copy, [&](FetchResult&& got) {
    std::lock_guard lock(mutex);
    static_cast<FetchResult&>(result) = std::move(got);
    ready = true;
    wake.notify_one();
  });
  CHECK(queued);
  std::unique_lock lock(mutex);
  wake.wait(lock, [&] { return ready; });
  return result;
}

void golden_hashes() {
  const uint32_t tokens[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const auto hashes = sequence_hashes(tokens, 12, 4, kHashSeed, false);
  CHECK((hashes == std::vector<uint64_t>{14643705804678351452u, 4945711292740353085u, 12583592247330656132u}));
  CHECK(sequence_hashes(tokens, 11, 4, kHashSeed, false).size() == 2);
  CHECK(sequence_hashes(tokens, 11, 4, kHashSeed, true).size() == 3);
  CHECK(sequence_hashes(tokens, 0, 4, kHashSeed, true).empty());
  CHECK(salted_seed("") == kHashSeed);
  CHECK(salted_seed("tenant-a") == 1948188790972764086u);
  CHECK(salted_seed("", "my-lora") == 12827409268353072861u);
  CHECK(salted_seed("tenant-a", "my-lora") == 14775598059325835610u);
  CHECK(sequence_hashes(tokens, 4, 4, salted_seed("tenant-a"), false)[0] == 5738685477468498325u);
}

void slots_are_given_once() {
  auto pool = make_pool(3);
  CHECK(pool->bytes() % 4096 == 0);
  const int64_t a = pool->take();
  const int64_t b = pool->take();
  const int64_t c = pool->take();
  CHECK(a >= 4096 && b >= 4096 && c >= 4096 && a != b && b != c && a != c);
  CHECK(pool->take() == -1);
  CHECK(pool->used() == 3);
  CHECK(pool->give(b));
  CHECK(!pool->give(b));
  CHECK(!pool->give(0));
  CHECK(!pool->give(b + 1));
  CHECK(!pool->give(1u << 30));
  CHECK(pool->used() == 2);
  CHECK(pool->take() == b);
}

void impossible_pools_are_refused() {
  std::string error;
  CHECK(KvPool::create(0, 1, error) == nullptr && !error.empty());
  CHECK(KvPool::create(1, 0, error) == nullptr);
  CHECK(KvPool::create(SIZE_MAX / 2, 16, error) == nullptr);
  CHECK(KvPool::create(64, 1, error, std::string(65, 'x')) == nullptr);
}

void only_the_owner_writes() {
  auto pool = make_pool(2);
  const std::string path = "/proc/self/fd/" + std::to_string(pool->fd());
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd >= 0) {
    CHECK(mmap(nullptr, pool->bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    CHECK(pwrite(fd, "x", 1, 5000) < 0);
    CHECK(ftruncate(fd, 4096) != 0);
    close(fd);
  }
  const int64_t offset = pool->take();
  pool->at(offset)[0] = 42;
  CHECK(pool->at(offset)[0] == 42);
}

void a_copy_is_private_and_verified() {
  auto pool = make_pool(4);
  auto fetcher = KvFetcher::create();
  const BlockDesc first = export_block(*pool, 0, 11);
  const BlockDesc second = export_block(*pool, 1, 22);
  const Fetched result = fetch(*fetcher, describe(*pool), {first, second});
  CHECK(result.status == FetchStatus::ok);
  CHECK(result.copies.size() == 2);
  std::memset(pool->at(first.offset), 99, kSlot);
  CHECK(result.copies[0][0] == 11 && result.copies[1][kSlot - 1] == 22);
  // Overwritten since it was described: never served.
  CHECK(fetch(*fetcher, describe(*pool), {first}).status == FetchStatus::mismatch);
  // Equal bytes under another identity fail too.
  BlockDesc foreign = second;
  foreign.hash += 1;
  CHECK(fetch(*fetcher, describe(*pool), {foreign}).status == FetchStatus::mismatch);
}

void descriptors_are_checked() {
  auto pool = make_pool(4);
  auto fetcher = KvFetcher::create();
  const BlockDesc good = export_block(*pool, 0, 5);
  const PoolDesc desc = describe(*pool);
  const auto status = [&](PoolDesc from, std::vector<BlockDesc> blocks) { return fetch(*fetcher, from, std::move(blocks)).status; };
  const auto changed = [&](auto&& edit) {
    BlockDesc block = good;
    edit(block);
    return status(desc, {block});
  };
  // Before anything is mapped, so that the checks of the mapping are the ones that answer.
  PoolDesc other = desc;
  other.bytes += 4096;
  CHECK(status(other, {good}) == FetchStatus::mismatch);
  other = desc;
  other.owner = "worker-2";
  CHECK(status(other, {good}) == FetchStatus::gone);
  other = desc;
  other.epoch += 1;
  CHECK(status(other, {good}) == FetchStatus::gone);
  other = desc;
  other.fd = 0;
  CHECK(status(other, {good}) == FetchStatus::gone);
  other = desc;
  other.fd = 9999;
  CHECK(status(other, {good}) == FetchStatus::gone);
  other = desc;
  other.pid = 0x7ffffff0;
  CHECK(status(other, {good}) == FetchStatus::gone);
  CHECK(status(desc, {good}) == FetchStatus::ok);
  CHECK(changed([](BlockDesc& block) { block.offset = 0; }) == FetchStatus::mismatch);
  CHECK(changed([&](BlockDesc& block) { block.offset = pool->bytes(); }) == FetchStatus::mismatch);
  CHECK(changed([&](BlockDesc& block) { block.offset = pool->bytes() - kSlot + 1; }) == FetchStatus::mismatch);
  CHECK(changed([](BlockDesc& block) { block.offset = UINT64_MAX - 10; }) == FetchStatus::mismatch);
  CHECK(changed([](BlockDesc& block) { block.bytes = 0; }) == FetchStatus::mismatch);
  CHECK(changed([](BlockDesc& block) { block.bytes = UINT32_MAX; }) == FetchStatus::mismatch);
  CHECK(status(desc, std::vector<BlockDesc>(1000, good)) == FetchStatus::mismatch);
  CHECK(status(desc, {}) == FetchStatus::ok);
}

void an_unsealed_file_is_refused() {
  auto pool = make_pool(2);
  auto fetcher = KvFetcher::create();
  const BlockDesc block = export_block(*pool, 0, 5);
  const int fd = memfd_create("dynact-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(fd >= 0 && ftruncate(fd, static_cast<off_t>(pool->bytes())) == 0);
  CHECK(pwrite(fd, pool->at(0), pool->bytes(), 0) == static_cast<ssize_t>(pool->bytes()));
  PoolDesc desc = describe(*pool);
  desc.fd = fd;
  CHECK(fetch(*fetcher, desc, {block}).status == FetchStatus::mismatch);
  close(fd);
}

// The number of the fd stays, the pool behind it changes: what a restarted worker looks like to a peer.
void a_reused_descriptor_is_not_mistaken() {
  auto pool = make_pool(2, "worker-1", 1);
  const BlockDesc block = export_block(*pool, 0, 5);
  const PoolDesc old = describe(*pool, "worker-1", 1);
  pool.reset();
  auto successor = make_pool(2, "worker-1", 2);
  export_block(*successor, 0, 5);
  auto fetcher = KvFetcher::create();
  CHECK(successor->fd() == old.fd);
  CHECK(fetch(*fetcher, old, {block}).status == FetchStatus::gone);
  CHECK(fetch(*fetcher, describe(*successor, "worker-1", 2), {block}).status == FetchStatus::ok);
}

void a_dead_owner_is_gone() {
  int ends[2];
  CHECK(pipe(ends) == 0);
  struct {
    int fd;
    uint64_t bytes;
    BlockDesc block;
  } told{};
  const pid_t child = fork();
  if (child == 0) {
    auto pool = make_pool(2);
    told.fd = pool->fd();
    told.bytes = pool->bytes();
    told.block = export_block(*pool, 0, 77);
    if (write(ends[1], &told, sizeof told) != sizeof told) _exit(1);
    pause();
    _exit(0);
  }
  CHECK(read(ends[0], &told, sizeof told) == sizeof told);
  const PoolDesc desc{"worker-1", 7, child, told.fd, told.bytes};
  auto fetcher = KvFetcher::create();
  const Fetched alive = fetch(*fetcher, desc, {told.block});
  CHECK(alive.status == FetchStatus::ok && alive.copies[0][0] == 77);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  // Its memory lives as long as the mapping does; forgotten, it is gone.
  CHECK(fetch(*fetcher, desc, {told.block}).status == FetchStatus::ok);
  fetcher->forget("worker-1");
  CHECK(fetch(*fetcher, desc, {told.block}).status == FetchStatus::gone);
  close(ends[0]);
  close(ends[1]);
}

void the_queue_is_bounded_and_stops() {
  auto pool = make_pool(2);
  const BlockDesc block = export_block(*pool, 0, 5);
  auto fetcher = KvFetcher::create();
  std::promise<void> open;
  const std::shared_future<void> gate = open.get_future().share();
  std::atomic<int> done{0};
  std::atomic<int> stopped{0};
  std::atomic<bool> entered{false};
  CHECK(fetcher->fetch(describe(*pool), {block}, unwanted, [&](FetchResult&&) {
    entered = true;
    gate.wait();
    ++done;
  }));
  while (!entered) std::this_thread::yield();
  int accepted = 0;
  while (fetcher->fetch(describe(*pool), {block}, unwanted, [&](FetchResult&& result) {
    if (result.status == FetchStatus::stopped) ++stopped;
    ++done;
  })) {
    ++accepted;
  }
  CHECK(accepted == 1024);
  std::thread opener([&] { open.set_value(); });
  fetcher.reset();
  opener.join();
  CHECK(done == accepted + 1);
}

void many_threads_share_a_pool() {
  auto pool = make_pool(64);
  auto fetcher = KvFetcher::create();
  std::vector<std::thread> threads;
  std::atomic<int> bad{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const BlockDesc block = export_block(*pool, i, static_cast<uint8_t>(t * 50 + i % 50));
        const Fetched result = fetch(*fetcher, describe(*pool), {block});
        if (result.status != FetchStatus::ok || result.copies[0][0] != static_cast<uint8_t>(t * 50 + i % 50)) ++bad;
        if (i % 50 == 0) fetcher->forget("worker-1");
        if (!pool->give(block.offset)) ++bad;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(bad == 0);
  CHECK(pool->used() == 0);
}

}  // namespace

int main() {
  golden_hashes();
  slots_are_given_once();
  impossible_pools_are_refused();
  only_the_owner_writes();
  a_copy_is_private_and_verified();
  descriptors_are_checked();
  an_unsealed_file_is_refused();
  a_reused_descriptor_is_not_mistaken();
  a_dead_owner_is_gone();
  the_queue_is_bounded_and_stops();
  many_threads_share_a_pool();
  std::printf("pool_test: %s\n", failures == 0 ? "ok" : "FAILED");
  return failures == 0 ? 0 : 1;
}
