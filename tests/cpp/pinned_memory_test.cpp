#include "device/pinned_memory.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "batch/slot_pool.h"
#include "check.h"
#include "fake_cuda.h"
#include "pinned_fixtures.h"

using namespace fastload;
using namespace pinned_fixtures;

namespace {

void refuse_all() {
  fake_cuda_fail("cuMemHostRegister", 1, 801, -1);
  fake_cuda_fail("cuMemHostAlloc", 1, 2, -1);
}

void check_slots() {
  check::promise("slots are parts of registered slabs, aligned, and of one holder each", [] {
    PinnedMemory memory(device(), kUnlimited);
    std::mt19937 random(1);
    std::map<std::byte*, std::size_t> held;
    for (int step = 0; step < 1500; ++step) {
      if (held.size() < 40 && random() % 2 == 0) {
        const std::size_t bytes = random() % 3 == 0 ? random() % 3000 : random() % (2 * kMiB);
        const Part part = taken(memory, bytes);
        const auto above = held.upper_bound(part.data);
        CHECK(above == held.end() || part.data + bytes <= above->first);
        if (above != held.begin()) {
          const auto below = std::prev(above);
          CHECK(below->first + below->second <= part.data);
        }
        if (step % 50 == 0 && bytes > 0) CHECK(is_pinned(part));
        CHECK(held.emplace(part.data, bytes).second);
      } else if (!held.empty()) {
        const auto one =
            std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
        give(memory, {one->first, one->second});
        held.erase(one);
      }
    }
    CHECK_EQUAL(fake_cuda_count("registered"), memory.slab_count());
    CHECK(memory.slab_count() < 10);
    CHECK(memory.complaint().empty());
    for (const auto& [data, bytes] : held) give(memory, {data, bytes});
  });

  check::promise("all is given back at the end", [] { CHECK_EQUAL(pinned_ranges(), 0); });

  check::promise("what was reserved is one slab, and enough", [] {
    PinnedMemory memory(device(), kUnlimited);
    memory.reserve(24 * kMiB);
    CHECK_EQUAL(memory.slab_count(), 1);
    std::vector<Part> parts;
    for (int i = 0; i < 12; ++i) parts.push_back(taken(memory, 2 * kMiB));
    CHECK_EQUAL(memory.slab_count(), 1);
    CHECK_EQUAL(memory.pinned_bytes(), 24 * kMiB);
    for (const Part& part : parts) CHECK(is_pinned(part));
    memory.reserve(4 * kMiB);  // nothing is free
    CHECK_EQUAL(memory.slab_count(), 2);
    memory.reserve(4 * kMiB);
    for (const Part& part : parts) give(memory, part);
    memory.reserve(28 * kMiB);
    memory.reserve(0);
    CHECK_EQUAL(memory.pinned_bytes(), 28 * kMiB);
    memory.reserve(31 * kMiB);
    CHECK_EQUAL(memory.pinned_bytes(), 31 * kMiB);
  });

  check::promise("what nobody reserved grows by doubling", [] {
    PinnedMemory memory(device(), kUnlimited);
    std::vector<Part> parts;
    for (int i = 0; i < 500; ++i) parts.push_back(taken(memory, 65536));
    CHECK_EQUAL(memory.slab_count(), 5);  // 2, 2, 4, 8, 16 MiB
    for (const Part& part : parts) give(memory, part);
  });

  check::promise("no bytes are some, and too many are none", [] {
    PinnedMemory memory(device(), kUnlimited);
    const Part part = taken(memory, 0);
    give(memory, part);
    CHECK_THROWS(std::bad_alloc, memory.allocate(SIZE_MAX));
    CHECK_THROWS(std::bad_alloc, memory.reserve(SIZE_MAX));
  });

  check::promise("epochs of a pool take nothing new", [] {
    const auto memory = std::make_shared<PinnedMemory>(device(), kUnlimited);
    const auto pool = std::make_shared<SlotPool>(memory);
    const std::size_t slot = SlotPool::capacity_for(600'000);
    memory->reserve(6 * slot);
    for (int epoch = 0; epoch < 20; ++epoch) {
      pool->add_demand(4 * slot);
      std::vector<Lease> kept;
      for (int batch = 0; batch < 30; ++batch) {
        kept.push_back(pool->acquire(600'000));
        if (kept.size() > 5) kept.erase(kept.begin());
      }
      kept.clear();
      pool->remove_demand(4 * slot);
    }
    CHECK_EQUAL(memory->slab_count(), 1);
  });

  check::promise("threads that want room at once make it once", [] {
    PinnedMemory memory(device(), [] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));  // till the others want it too
      return kUnlimited();
    });
    std::barrier together(4);
    std::vector<std::thread> threads;
    std::array<Part, 4> parts;
    for (Part& part : parts) {
      threads.emplace_back([&] {
        together.arrive_and_wait();
        part = taken(memory, 100'000);
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQUAL(memory.slab_count(), 1);
    for (const Part& part : parts) give(memory, part);
  });

  check::promise("threads share it while it grows", [] {
    PinnedMemory memory(device(), kUnlimited);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&memory, t] {
        std::mt19937 random(t);
        std::vector<Part> held;
        for (int step = 0; step < 100; ++step) {
          if (held.size() < 8 && random() % 3 != 0) {
            held.push_back(taken(memory, random() % 300'000));
            std::memset(held.back().data, static_cast<int>(t), held.back().bytes);
          } else if (!held.empty()) {
            const Part part = held.back();
            held.pop_back();
            CHECK(std::all_of(part.data, part.data + part.bytes,
                              [t](std::byte b) { return b == std::byte(t); }));
            give(memory, part);
          }
          if (step == 50) memory.reserve(kMiB);
        }
        for (const Part& part : held) give(memory, part);
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(memory.complaint().empty());
  });

  check::promise("a graph that somebody captures survives pinning", [] {
    void* stream = fake_cuda_make_stream(0);
    fake_cuda_capture(stream, 1);
    {
      PinnedMemory memory(device(), kUnlimited);
      give(memory, taken(memory, kMiB));
    }
    CHECK_EQUAL(fake_cuda_capture_status(stream), 1);
    fake_cuda_capture(stream, 0);
    fake_cuda_destroy_stream(stream);
  });
}

void check_ladder() {
  check::promise("where registering is refused, the driver's own memory is taken", [] {
    fake_cuda_fail("cuMemHostRegister", 1, 801, -1);
    {
      PinnedMemory memory(device(), kUnlimited);
      memory.reserve(4 * kMiB);
      const Part part = taken(memory, kMiB);
      CHECK(is_pinned(part));
      CHECK_EQUAL(fake_cuda_count("host_allocations"), 1);
      CHECK_EQUAL(memory.pinned_bytes(), 4 * kMiB);
      CHECK(memory.complaint().empty());
      give(memory, part);
    }
    fake_cuda_forgive();
    CHECK_EQUAL(pinned_ranges(), 0);
  });

  check::promise("where that is refused too, ordinary memory, and a complaint that says why", [] {
    PinnedMemory memory(device(), limits_of(MemoryLimits::kNone, 3072 * kMiB));
    refuse_all();
    const Part large = taken(memory, 5 * kMiB);
    const Part small = taken(memory, 100);
    CHECK(!is_pinned(large) && !is_pinned(small));
    CHECK_EQUAL(memory.pinned_bytes(), 0);
    CHECK_EQUAL(memory.slab_count(), 0);
    const std::string complaint = memory.complaint();
    for (const char* part :
         {"not pinned", "cuMemHostRegister: CUDA_ERROR_NOT_SUPPORTED", "RLIMIT_MEMLOCK 64.0 KiB",
          "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY", "memory.max 3.0 GiB", "prefetch_factor"}) {
      CHECK(has(complaint, part));
    }
    fake_cuda_forgive();
    const Part pinned = taken(memory, kMiB);
    CHECK(is_pinned(pinned));
    CHECK(!memory.complaint().empty());  // the others are still held
    for (const Part& part : {large, small, pinned}) give(memory, part);
    memory.reserve(20 * kMiB);
    CHECK(memory.complaint().empty());
  });

  check::promise("a slab that is refused is asked for again in the size that is needed", [] {
    PinnedMemory memory(device(), kUnlimited);
    const Part first = taken(memory, 8 * kMiB);
    refuse_all();
    fake_cuda_forgive();
    fake_cuda_fail("cuMemHostRegister", 1, 2, 1);
    fake_cuda_fail("cuMemHostAlloc", 1, 2, 1);
    const Part second = taken(memory, 3 * kMiB);
    CHECK(is_pinned(second));
    CHECK_EQUAL(memory.pinned_bytes(), 11 * kMiB);
    CHECK(memory.complaint().empty());
    give(memory, first);
    give(memory, second);
    fake_cuda_forgive();
  });

  check::promise("a driver that refuses four times in a row is not asked again", [] {
    PinnedMemory memory(device(), kUnlimited);
    refuse_all();
    const auto asked = fake_cuda_calls("cuMemHostRegister");
    memory.reserve(4 * kMiB);
    CHECK(has(memory.complaint(), "cuMemHostRegister"));
    std::vector<Part> parts;
    for (int i = 0; i < 20; ++i) parts.push_back(taken(memory, 3 * kMiB));
    CHECK_EQUAL(fake_cuda_calls("cuMemHostRegister"), asked + 4);
    for (const Part& part : parts) give(memory, part);
    CHECK(has(memory.complaint(), "cuMemHostRegister"));
    fake_cuda_forgive();
  });

  check::promise("a driver that gives in between is asked again", [] {
    PinnedMemory memory(device(), kUnlimited);
    std::vector<Part> parts;
    for (int round = 0; round < 2; ++round) {
      refuse_all();
      for (int i = 0; i < 3; ++i) memory.reserve((i + 1) * 4 * kMiB);
      fake_cuda_forgive();
      parts.push_back(taken(memory, 16 * kMiB));
      CHECK(is_pinned(parts.back()));
    }
    for (const Part& part : parts) give(memory, part);
  });

  check::promise("what is refused keeps no memory", [] {
    const auto mapped_pages = [] {
      std::size_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      return pages;
    };
    PinnedMemory memory(device(), kUnlimited);
    refuse_all();
    const std::size_t before = mapped_pages();
    for (int i = 0; i < 4; ++i) memory.reserve(64 * kMiB);
    CHECK(mapped_pages() < before + 64 * kMiB / 4096);
    fake_cuda_forgive();
  });

  check::promise("at most a quarter of the memory is pinned, as much of it as there is", [] {
    struct Case {
      std::size_t available, cgroup, most;
    };
    for (const Case& c :
         {Case{64 * kMiB, MemoryLimits::kNone, 16 * kMiB},
          Case{MemoryLimits::kNone, 64 * kMiB, 16 * kMiB}, Case{64 * kMiB, 40 * kMiB, 10 * kMiB}}) {
      // What is pinned is no longer available.
      PinnedMemory* self = nullptr;
      PinnedMemory memory(device(), [&] {
        MemoryLimits limits = limits_of(c.available, c.cgroup)();
        if (limits.available != MemoryLimits::kNone) limits.available -= self->pinned_bytes();
        return limits;
      });
      self = &memory;
      std::vector<Part> parts = {taken(memory, 4 * kMiB)};
      memory.reserve(40 * kMiB);
      CHECK_EQUAL(memory.pinned_bytes(), c.most);
      CHECK(has(memory.complaint(), "pinning 40.0 MiB more would take more than a quarter"));
      for (std::size_t bytes = 4 * kMiB; bytes < c.most; bytes += 2 * kMiB) {
        parts.push_back(taken(memory, 2 * kMiB));
        CHECK(is_pinned(parts.back()));
      }
      for (int i = 0; i < 10; ++i) parts.push_back(taken(memory, 2 * kMiB));
      CHECK(!is_pinned(parts.back()));
      CHECK_EQUAL(memory.pinned_bytes(), c.most);
      for (const Part& part : parts) give(memory, part);
    }
    CHECK_EQUAL(pinned_ranges(), 0);
  });
}

}  // namespace

int main() {
  fake_cuda_set_devices(1);
  check_slots();
  check_ladder();
}
