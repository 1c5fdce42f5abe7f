#include "device/transfer.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

#include "base/error.h"
#include "check.h"
#include "transfer_fixtures.h"

using namespace fastload;
using loop::pointer;

namespace {

constexpr auto kAtOnce = Transfer::Clock::time_point::min();

Transfer::Clock::time_point never() { return Transfer::Clock::now() + std::chrono::hours(1); }

// A transfer of one large and two small arrays.
struct Rig {
  explicit Rig(int ordinal = 0)
      : device(CudaDevice::get(ordinal, FAKE_CUDA)),
        pool(std::make_shared<SlotPool>(std::make_shared<PinnedMemory>(device))),
        times(std::make_shared<StreamTimes>(device)),
        stream(fake_cuda_make_stream(ordinal)) {
    pool->add_demand(1 << 20);
    source = pool->acquire(100'000);
    std::memset(source.data(), 1, source.bytes());
    small = {pool->acquire(100), pool->acquire(300)};
    std::memset(small[0].data(), 2, 100);
    std::memset(small[1].data(), 3, 300);
    transfer = std::make_unique<Transfer>(device, pool, times);
  }
  ~Rig() {
    transfer.reset();
    fake_cuda_destroy_stream(stream);
  }

  CudaStream consumer() const { return static_cast<CudaStream>(stream); }
  Shipment shipment() {
    Shipment shipment;
    shipment.copies = {{pointer(target.data()), source.data(), source.bytes()}};
    shipment.packed = {{pointer(slab.data() + 256), small[1].data(), 300},
                       {pointer(slab.data()), small[0].data(), 100}};
    return shipment;
  }
  Transfer::Ticket submit() { return transfer->submit(shipment(), consumer()); }
  void check_arrived() const {
    for (const std::byte byte : target) CHECK(byte == std::byte(1));
    for (std::size_t i = 0; i < 100; ++i) CHECK(slab[i] == std::byte(2));
    for (std::size_t i = 256; i < slab.size(); ++i) CHECK(slab[i] == std::byte(3));
  }
  bool busy() const {
    return fake_cuda_busy(source.data(), source.bytes()) != 0 ||
           fake_cuda_busy(target.data(), target.size()) != 0 ||
           fake_cuda_busy(slab.data(), slab.size()) != 0;
  }

  std::shared_ptr<CudaDevice> device;
  std::shared_ptr<SlotPool> pool;
  std::shared_ptr<StreamTimes> times;
  void* stream;
  Lease source;
  std::array<Lease, 2> small;
  std::vector<std::byte> target = std::vector<std::byte>(100'000);
  std::vector<std::byte> slab = std::vector<std::byte>(556);
  std::unique_ptr<Transfer> transfer;
};

void check_copies() {
  check::promise("arrays arrive; small ones cross the bus together", [] {
    Rig rig;
    const auto ticket = rig.submit();
    CHECK(rig.transfer->wait_until(ticket, never()));
    rig.check_arrived();
    const TransferStats& stats = rig.transfer->stats();
    CHECK_EQUAL(stats.copies, 2);
    CHECK_EQUAL(stats.packed, 2);
    CHECK_EQUAL(stats.bytes, 100'556);
    CHECK_EQUAL(stats.kernels, 0);
    const Shipment nothing{{{0, nullptr, 0}}, {{0, nullptr, 0}}, {}};
    CHECK(rig.transfer->wait_until(rig.transfer->submit(nothing, rig.consumer()), never()));
    CHECK_EQUAL(stats.copies, 2);
    CHECK_THROWS(std::out_of_range, rig.transfer->done(2));
    CHECK_THROWS(std::out_of_range, rig.transfer->deliver(-1, rig.consumer()));
  });

  check::promise("images are delivered by a kernel, as the CPU does it", [] {
    const auto device = CudaDevice::get(0, FAKE_CUDA);
    loop::Loop loop(device, 5);
    loop.run(12, false);
  });

  check::promise("the host does not wait", [] {
    Rig rig;
    fake_cuda_hold_all(1);
    const auto ticket = rig.submit();
    rig.transfer->deliver(ticket, rig.consumer());
    CHECK(!rig.transfer->done(ticket));
    CHECK(!rig.transfer->wait_until(ticket, kAtOnce));
    CHECK(rig.busy());
    CHECK_EQUAL(rig.transfer->ask(rig.consumer()).oldest, ticket);
    fake_cuda_hold_all(0);
    CHECK(rig.transfer->wait_until(ticket, never()));
    CHECK_EQUAL(rig.transfer->ask(rig.consumer()).oldest, ticket + 1);
    CHECK(!rig.busy());
    CHECK_EQUAL(rig.transfer->stats().waits, 1);
    rig.check_arrived();
  });

  check::promise("copies begin after what the consumer's stream was given before", [] {
    Rig rig;
    fake_cuda_hold(rig.stream, 1);
    fake_cuda_fill(rig.stream, rig.target.data(), 9, rig.target.size());
    const auto ticket = rig.submit();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    CHECK(!rig.transfer->done(ticket));
    fake_cuda_hold(rig.stream, 0);
    CHECK(rig.transfer->wait_until(ticket, never()));
    rig.check_arrived();
  });

  check::promise("what the consumer's stream is given after deliver() sees the batch", [] {
    Rig rig;
    fake_cuda_hold_all(1);
    fake_cuda_hold(rig.stream, 0);
    rig.transfer->deliver(rig.submit(), rig.consumer());
    std::vector<std::byte> seen(rig.target.size());
    fake_cuda_copy(rig.stream, seen.data(), rig.target.data(), seen.size());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    fake_cuda_hold_all(0);
    CHECK_EQUAL(fake_cuda_synchronize(rig.stream), 0);
    CHECK(seen == std::vector<std::byte>(seen.size(), std::byte(1)));
  });
}

void check_memory() {
  check::promise("in the steady state nothing is allocated, neither memory nor events", [] {
    Rig rig;
    for (int i = 0; i < 20; ++i) CHECK(rig.transfer->wait_until(rig.submit(), never()));
    const auto events = fake_cuda_count("events");
    const auto slots = rig.pool->stats().allocation_count;
    for (int i = 0; i < 1000; ++i) CHECK(rig.transfer->wait_until(rig.submit(), never()));
    CHECK_EQUAL(fake_cuda_count("events"), events);
    CHECK_EQUAL(rig.pool->stats().allocation_count, slots);
    CHECK_EQUAL(fake_cuda_count("pageable"), 0);
  });

  check::promise("a batch costs two records of events, and a few batches more", [] {
    Rig rig;
    const auto calls = [](const char* call, auto&& work) {
      const auto before = fake_cuda_calls(call);
      work();
      return fake_cuda_calls(call) - before;
    };
    const auto load = [&](int batches) {
      for (int i = 0; i < batches; ++i) {
        rig.transfer->ask(rig.consumer());
        const auto ticket = rig.submit();
        rig.transfer->deliver(ticket, rig.consumer());
        CHECK(rig.transfer->wait_until(ticket, never()));
      }
    };
    const auto slow = fake_cuda_count("slow_waits");
    load(TimedBatches::kAllTimed);
    constexpr int kRounds = 10;
    const auto records = calls("cuEventRecord", [&] { load(kRounds * TimedBatches::kTimedEvery); });
    CHECK_EQUAL(records, kRounds * (2 * TimedBatches::kTimedEvery + 4));
    CHECK_EQUAL(fake_cuda_count("slow_waits"), slow);
  });

  check::promise("what is packed is not given back before it is copied", [] {
    Rig rig;
    fake_cuda_hold_all(1);
    const std::size_t before = rig.pool->stats().used_bytes;
    const auto ticket = rig.submit();
    CHECK(rig.pool->stats().used_bytes > before);
    fake_cuda_hold_all(0);
    CHECK(rig.transfer->wait_until(ticket, never()));
    CHECK_EQUAL(rig.pool->stats().used_bytes, before);
  });

  check::promise("the destructor waits for what is running", [] {
    Rig rig;
    fake_cuda_hold_all(1);
    rig.submit();
    std::thread later([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      fake_cuda_hold_all(0);
    });
    rig.transfer.reset();
    CHECK(!rig.busy());
    rig.check_arrived();
    later.join();
  });
}

void check_captures() {
  check::promise("a capture: an error, nothing lost, and the graph is not broken", [] {
    Rig rig;
    const auto ticket = rig.submit();
    fake_cuda_capture(rig.stream, 1);
    CHECK(rig.transfer->ask(rig.consumer()).is_captured);
    const std::string said = CHECK_THROWS(CudaError, rig.submit());
    CHECK(said.find("graph") != std::string::npos);
    CHECK_THROWS(CudaError, rig.transfer->deliver(ticket, rig.consumer()));
    CHECK(rig.transfer->wait_until(ticket, never()));
    CHECK_EQUAL(fake_cuda_capture_status(rig.stream), 1);
    fake_cuda_capture(rig.stream, 0);
    rig.transfer->deliver(ticket, rig.consumer());
    rig.transfer->deliver(rig.submit(), rig.consumer());
    CHECK_EQUAL(fake_cuda_synchronize(rig.stream), 0);
    rig.check_arrived();
  });

  check::promise("somebody else's capture goes on", [] {
    Rig rig;
    void* const other = fake_cuda_make_stream(0);
    fake_cuda_capture(other, 1);
    for (int i = 0; i < 20; ++i) {
      const auto ticket = rig.submit();
      rig.transfer->deliver(ticket, rig.consumer());
      CHECK(rig.transfer->wait_until(ticket, never()));
    }
    rig.transfer.reset();
    CHECK_EQUAL(fake_cuda_capture_status(other), 1);
    fake_cuda_capture(other, 0);
    fake_cuda_destroy_stream(other);
  });
}

void check_failures() {
  check::promise("whatever call fails: CudaError, nothing runs, nothing leaks, and it goes on", [] {
    constexpr int kOutOfMemory = 2;
    const char* const calls[] = {"cuCtxPushCurrent",    "cuThreadExchangeStreamCaptureMode",
                                 "cuStreamIsCapturing", "cuEventQuery",
                                 "cuEventRecord",       "cuStreamWaitEvent",
                                 "cuMemcpyHtoDAsync"};
    Rig rig;
    rig.transfer->ask(rig.consumer());
    CHECK(rig.transfer->wait_until(rig.submit(), never()));
    const auto events = fake_cuda_count("events");
    const std::size_t used = rig.pool->stats().used_bytes;
    for (const char* call : calls) {
      int nth = 1;
      for (;; ++nth) {
        fake_cuda_hold_all(1);
        const auto first = rig.submit();  // so that an event is asked
        fake_cuda_fail(call, nth, kOutOfMemory, 1);
        bool failed = false;
        fake_cuda_hold_all(0);
        try {
          CHECK(!rig.transfer->ask(rig.consumer()).is_captured);
          rig.transfer->submit(rig.shipment(), rig.consumer(), first);
        } catch (const CudaError& error) {
          failed = true;
          CHECK(std::string(error.what()).find(call) == 0);
          CHECK_EQUAL(error.code(), kOutOfMemory);
        }
        fake_cuda_forgive();
        CHECK(rig.transfer->wait_until(failed ? first : first + 1, never()));
        CHECK(!rig.busy());
        CHECK_EQUAL(rig.pool->stats().used_bytes, used);
        if (!failed) break;
      }
      CHECK(nth > 1);
    }
    CHECK(fake_cuda_count("events") <= events + 24);
    rig.transfer->deliver(rig.submit(), rig.consumer());
    CHECK_EQUAL(fake_cuda_synchronize(rig.stream), 0);
    rig.check_arrived();
  });

  check::promise("no kernel for so many channels: an error, and nothing runs", [] {
    Rig rig;
    PixelSpec spec{1, 65, false};
    spec.conversion = Conversion{Number::u8, Number::f32, true, 1, {}, {}};
    spec.conversion->means.assign(65, 0);
    spec.conversion->stds.assign(65, 1);
    const auto plan = std::make_shared<const PixelPlan>(spec);
    Shipment shipment = rig.shipment();
    shipment.pixels.push_back({ImageDelivery{plan, plan->shape(1, 1), {}}, {0}, nullptr, 0, 0});
    CHECK_THROWS(std::invalid_argument, rig.transfer->submit(shipment, rig.consumer()));
    CHECK(!rig.busy());
  });

  check::promise("a sticky error is thrown from then on, and nothing hangs", [] {
    fake_cuda_set_devices(2);
    {
      Rig rig(1);
      fake_cuda_hold_all(1);
      const auto ticket = rig.submit();
      fake_cuda_stick(700);
      const std::string said = CHECK_THROWS(CudaError, rig.transfer->done(ticket));
      CHECK(said.find("outside fastload") != std::string::npos);
      CHECK_THROWS(CudaError, rig.submit());
      CHECK_THROWS(CudaError, rig.transfer->deliver(ticket, rig.consumer()));
      CHECK_THROWS(CudaError, rig.transfer->wait_until(ticket, never()));
      rig.transfer.reset();
      fake_cuda_forgive();
      fake_cuda_hold_all(0);
    }
  });

  check::promise("a forked child cannot use it, and drops it", [] {
    Rig rig;
    const auto ticket = rig.submit();
    const pid_t child = fork();
    if (child == 0) {
      CHECK_THROWS(StoppedError, rig.submit());
      CHECK_THROWS(StoppedError, rig.transfer->deliver(ticket, rig.consumer()));
      rig.transfer.reset();
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK_EQUAL(status, 0);
    CHECK(rig.transfer->wait_until(ticket, never()));
    rig.check_arrived();
  });
}

void check_loops() {
  check::promise("a loop that keeps, drops and breaks off, at any timing", [] {
    const auto device = CudaDevice::get(0, FAKE_CUDA);
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      fake_cuda_seed(seed, std::array{0, 20, 200}[seed % 3]);
      loop::Loop loop(device, seed);
      loop.run(40, seed % 4 == 3);
    }
  });

  check::promise("a loader whose consumer is busy does not hold up another one", [] {
    Rig idle, busy;
    fake_cuda_hold(busy.stream, 1);
    const auto later = busy.submit();
    for (int i = 0; i < 3; ++i) {
      const auto ticket = idle.submit();
      idle.transfer->deliver(ticket, idle.consumer());
      CHECK(idle.transfer->wait_until(ticket, Transfer::Clock::now() + std::chrono::minutes(1)));
    }
    idle.check_arrived();
    CHECK(!busy.transfer->done(later));
    fake_cuda_hold(busy.stream, 0);
    CHECK(busy.transfer->wait_until(later, never()));
    busy.check_arrived();
  });

  check::promise("six loops at once share four side streams", [] {
    const auto device = CudaDevice::get(0, FAKE_CUDA);
    fake_cuda_seed(1, 50);
    std::vector<std::thread> threads;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      threads.emplace_back([&device, seed] {
        loop::Loop loop(device, seed);
        loop.run(60, seed == 1);
      });
    }
    for (std::thread& thread : threads) thread.join();
    fake_cuda_seed(0, 0);
  });
}

}  // namespace

int main() {
  check_copies();
  check_memory();
  check_captures();
  check_loops();
  CHECK_EQUAL(fake_cuda_count("misuses"), 0);
  CHECK_EQUAL(fake_cuda_count("pageable"), 0);
  check_failures();
  return 0;
}
