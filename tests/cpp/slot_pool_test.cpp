#include "batch/slot_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "batch/host_memory.h"
#include "check.h"

using namespace fastload;

namespace {

// Host memory that is counted, and that can be used up.
class Counted final : public MemorySource {
 public:
  std::byte* allocate(std::size_t bytes) override {
    if (live_bytes + bytes > limit) throw std::bad_alloc();
    live_bytes += bytes;
    ++allocations;
    return memory_.allocate(bytes);
  }
  void release(std::byte* data, std::size_t bytes) noexcept override {
    live_bytes -= bytes;
    memory_.release(data, bytes);
  }

  std::atomic<std::size_t> live_bytes{0};
  std::atomic<int> allocations{0};
  std::size_t limit = SIZE_MAX;

 private:
  HostMemory memory_;
};

struct Pool {
  std::shared_ptr<Counted> memory = std::make_shared<Counted>();
  std::shared_ptr<SlotPool> pool = std::make_shared<SlotPool>(memory);
};

constexpr std::size_t kSlot = 100'000;
const std::size_t kSlotCapacity = SlotPool::capacity_for(kSlot);

int exit_status_of(void (*body)()) {
  const pid_t child = fork();
  if (child == 0) {
    if (freopen("/dev/null", "w", stderr) == nullptr) _exit(99);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace

int main() {
  check::promise("sizes that vary share slots: room for at most a quarter more", [] {
    for (std::size_t bytes = 1; bytes < 1'000'000; bytes += 1 + bytes / 7) {
      const std::size_t room = SlotPool::roomy(bytes);
      CHECK(room >= bytes && room <= bytes + bytes / 4 + 256);
      CHECK_EQUAL(SlotPool::roomy(room), room);
    }
    CHECK_EQUAL(SlotPool::roomy(0), 0);
    Pool p;
    p.pool->add_demand(1 << 20);
    for (std::size_t bytes : {90'000, 97'000, 91'000, 98'304}) {
      const Lease lease = p.pool->acquire(bytes, SlotPool::roomy(bytes));
      CHECK_EQUAL(lease.bytes(), bytes);
    }
    CHECK_EQUAL(p.pool->stats().allocation_count, 1);
  });

  check::promise("a slot is aligned, writable, and never leased twice at once", [] {
    Pool p;
    p.pool->add_demand(64 * kSlotCapacity);
    std::mt19937 random(1);
    std::map<std::byte*, Lease> held;
    for (int step = 0; step < 4000; ++step) {
      if (held.size() < 40 && random() % 2 == 0) {
        const std::size_t bytes = random() % 5 == 0 ? random() % 3 : random() % (2 * kSlot);
        Lease lease = p.pool->acquire(bytes);
        CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(lease.data()) % kFieldAlignment, 0);
        CHECK_EQUAL(lease.bytes(), bytes);
        std::memset(lease.data(), step & 0xFF, bytes);
        for (const auto& [data, other] : held) {
          CHECK(lease.data() + bytes <= data || data + other.bytes() <= lease.data());
        }
        std::byte* data = lease.data();
        CHECK(held.emplace(data, std::move(lease)).second);
      } else if (!held.empty()) {
        held.erase(std::next(held.begin(), random() % static_cast<int>(held.size())));
      }
    }
    held.clear();
    CHECK_EQUAL(p.pool->stats().used_bytes, 0);
  });

  check::promise("slots are used again: no allocation once as many exist as are in circulation",
                 [] {
                   Pool p;
                   p.pool->add_demand(4 * kSlotCapacity);
                   for (int round = 0; round < 100; ++round) {
                     std::vector<Lease> batch;
                     for (int i = 0; i < 4; ++i) batch.push_back(p.pool->acquire(kSlot));
                   }
                   CHECK_EQUAL(p.pool->stats().allocation_count, 4);
                   CHECK_EQUAL(p.memory->allocations.load(), 4);
                   CHECK_EQUAL(p.pool->stats().free_bytes, 4 * kSlotCapacity);
                 });

  check::promise("the pool grows without limit while leases are kept, then gives back", [] {
    Pool p;
    p.pool->add_demand(4 * kSlotCapacity);
    std::vector<Lease> kept;
    for (int i = 0; i < 100; ++i) kept.push_back(p.pool->acquire(kSlot));
    CHECK_EQUAL(p.pool->stats().used_bytes, 100 * kSlotCapacity);
    kept.clear();
    CHECK_EQUAL(p.pool->stats().used_bytes, 0);
    CHECK_EQUAL(p.pool->stats().free_bytes, 4 * kSlotCapacity);
    CHECK_EQUAL(p.memory->live_bytes.load(), 4 * kSlotCapacity);
  });

  check::promise("the last engine's slots are kept for the next epoch; without demand none are",
                 [] {
                   Pool p;
                   {
                     const Lease lease = p.pool->acquire(kSlot);
                   }
                   CHECK_EQUAL(p.memory->live_bytes.load(), 0);
                   for (int epoch = 0; epoch < 3; ++epoch) {
                     p.pool->add_demand(2 * kSlotCapacity);
                     {
                       const Lease a = p.pool->acquire(kSlot), b = p.pool->acquire(kSlot);
                       CHECK(a.data() != b.data());
                     }
                     p.pool->remove_demand(2 * kSlotCapacity);
                   }
                   CHECK_EQUAL(p.pool->stats().allocation_count, 3);
                   CHECK_EQUAL(p.pool->stats().free_bytes, 2 * kSlotCapacity);
                   p.pool->add_demand(kSlotCapacity);
                   p.pool->remove_demand(kSlotCapacity);
                   CHECK_EQUAL(p.pool->stats().free_bytes, kSlotCapacity);
                 });

  check::promise("a slot much larger than asked for is left for those who need it", [] {
    Pool p;
    p.pool->add_demand(100 << 20);
    std::byte* large = nullptr;
    {
      const Lease lease = p.pool->acquire(16 << 20);
      large = lease.data();
    }
    const Lease small = p.pool->acquire(4096);
    CHECK(small.data() != large);
    const Lease again = p.pool->acquire(15 << 20);
    CHECK(again.data() == large);
  });

  check::promise("fields of similar size do not take each other's slots", [] {
    Pool p;
    const std::size_t small = 70'000, large = 110'000;
    p.pool->add_demand(2 * (SlotPool::capacity_for(small) + SlotPool::capacity_for(large)));
    for (int round = 0; round < 50; ++round) {
      Lease a = p.pool->acquire(small), b = p.pool->acquire(large);
      (round % 2 == 0 ? a : b).reset();
    }
    CHECK_EQUAL(p.pool->stats().allocation_count, 2);
  });

  check::promise("no memory: bad_alloc, and the books are right afterwards", [] {
    Pool p;
    p.memory->limit = 3 * kSlotCapacity;
    std::vector<Lease> held;
    for (int i = 0; i < 3; ++i) held.push_back(p.pool->acquire(kSlot));
    CHECK_THROWS(std::bad_alloc, p.pool->acquire(kSlot));
    CHECK_EQUAL(p.pool->stats().used_bytes, 3 * kSlotCapacity);
    CHECK_EQUAL(p.pool->stats().allocation_count, 3);
    CHECK_THROWS(std::bad_alloc, p.pool->acquire(SIZE_MAX / 2));
    held.clear();
    held.push_back(p.pool->acquire(kSlot));
    CHECK_EQUAL(p.pool->stats().used_bytes, kSlotCapacity);
  });

  check::promise("a lease that moves is returned once", [] {
    Pool p;
    p.pool->add_demand(10 * kSlotCapacity);
    Lease a = p.pool->acquire(kSlot);
    Lease b = std::move(a);
    CHECK(a.data() == nullptr);
    Lease c = p.pool->acquire(kSlot);
    c = std::move(b);
    CHECK_EQUAL(p.pool->stats().used_bytes, kSlotCapacity);
    Lease& self = c;
    c = std::move(self);
    CHECK(c.data() != nullptr);
    c.reset();
    c.reset();
    CHECK_EQUAL(p.pool->stats().used_bytes, 0);
    CHECK_EQUAL(p.pool->stats().free_bytes, 2 * kSlotCapacity);
  });

  check::promise("a lease outlives the pool's owner; all memory comes back in the end", [] {
    std::weak_ptr<Counted> memory;
    Lease lease;
    {
      Pool p;
      memory = p.memory;
      lease = p.pool->acquire(kSlot);
    }
    std::memset(lease.data(), 1, kSlot);
    CHECK(!memory.expired());
    lease.reset();
    CHECK(memory.expired());
  });

  check::promise("threads that lease, and return each other's leases, share no slot", [] {
    Pool p;
    p.pool->add_demand(8 * kSlotCapacity);
    std::atomic<Lease*> mailbox{nullptr};
    std::vector<std::thread> team;
    for (int t = 0; t < 4; ++t) {
      team.emplace_back([&, t] {
        for (int i = 0; i < (check::kSanitized ? 300 : 2000); ++i) {
          auto lease = std::make_unique<Lease>(p.pool->acquire(kSlot));
          auto* words = reinterpret_cast<std::uint64_t*>(lease->data());
          const auto mark = static_cast<std::uint64_t>(t * 1'000'000 + i);
          for (std::size_t w = 0; w < kSlot / 8; w += 500) words[w] = mark;
          for (std::size_t w = 0; w < kSlot / 8; w += 500) CHECK(words[w] == mark);
          const std::unique_ptr<Lease> other(mailbox.exchange(lease.release()));
        }
      });
    }
    for (std::thread& thread : team) thread.join();
    delete mailbox.exchange(nullptr);
    CHECK_EQUAL(p.pool->stats().used_bytes, 0);
    CHECK(p.pool->stats().free_bytes <= 8 * kSlotCapacity);
    CHECK_EQUAL(p.pool->stats().free_bytes, p.memory->live_bytes.load());
  });

  check::promise("huge slots are aligned for huge pages and fully unmapped", [] {
    HostMemory memory;
    for (std::size_t bytes : {std::size_t{4} << 20, (std::size_t{5} << 20) + 1}) {
      std::byte* data = memory.allocate(bytes);
      CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(data) % (std::size_t{2} << 20), 0);
      std::memset(data, 7, bytes);
      memory.release(data, bytes);
    }
    CHECK_THROWS(std::bad_alloc, memory.allocate(SIZE_MAX / 4));
  });

  check::promise("a forked child's leases leave the parent's pool alone", [] {
    static Pool p;
    static Lease lease = p.pool->acquire(kSlot);
    CHECK_EQUAL(exit_status_of([] {
                  CHECK(!p.pool->usable());
                  lease.reset();
                  std::weak_ptr<SlotPool> pool = p.pool;
                  p.pool.reset();
                  CHECK(pool.expired());
                }),
                0);
    CHECK(p.pool->usable());
    lease.reset();
    CHECK_EQUAL(p.pool->stats().used_bytes, 0);
  });

#if defined(__SANITIZE_ADDRESS__)
  check::promise("a stale read of a returned slot is reported by AddressSanitizer", [] {
    const int status = exit_status_of([] {
      Pool p;
      p.pool->add_demand(10 * kSlotCapacity);
      Lease lease = p.pool->acquire(kSlot);
      const volatile std::byte* data = lease.data();
      lease.reset();
      const std::byte stale = data[kSlot / 2];
      _exit(stale == std::byte{1} ? 2 : 3);
    });
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
  });
#endif
}
