#include "device/stream_times.h"

#include <atomic>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "check.h"
#include "cuda_fixtures.h"
#include "transfer_fixtures.h"

using namespace fastload;
using cuda_fixtures::fresh_device;
using cuda_fixtures::status_of_child;
using loop::pointer;

namespace {

constexpr std::int64_t kBytes = 3000;  // and as many nanoseconds: see main()

Transfer::Clock::time_point never() { return Transfer::Clock::now() + std::chrono::hours(1); }

// A transfer of one array. Time stands still but for the copies.
struct Rig {
  explicit Rig(std::shared_ptr<CudaDevice> where = CudaDevice::get(0, FAKE_CUDA))
      : device(std::move(where)),
        pool(std::make_shared<SlotPool>(std::make_shared<PinnedMemory>(device))),
        times(std::make_shared<StreamTimes>(device)),
        stream(fake_cuda_make_stream(device->ordinal())) {
    source = pool->acquire(kBytes);
    std::memset(source.data(), 1, source.bytes());
    transfer = std::make_unique<Transfer>(device, pool, times);
  }
  ~Rig() {
    transfer.reset();
    fake_cuda_destroy_stream(stream);
  }

  CudaStream consumer() const { return static_cast<CudaStream>(stream); }
  void ask() { transfer->ask(consumer()); }
  Transfer::Ticket submit() {
    return transfer->submit({{{pointer(target), source.data(), source.bytes()}}, {}, {}},
                            consumer());
  }
  void deliver(Transfer::Ticket ticket) { transfer->deliver(ticket, consumer()); }
  void finish() const { CHECK_EQUAL(fake_cuda_synchronize(stream), 0); }
  void check(std::int64_t copy_ns, std::int64_t stall_ns) const {
    const StreamFigures figures = times->read();
    CHECK_EQUAL(figures.copy_ns, copy_ns);
    CHECK_EQUAL(figures.stall_ns, stall_ns);
  }

  std::shared_ptr<CudaDevice> device;
  std::shared_ptr<SlotPool> pool;
  std::shared_ptr<StreamTimes> times;
  void* stream;
  Lease source;
  std::byte target[kBytes];
  std::unique_ptr<Transfer> transfer;
};

void check_spans() {
  check::promise("a stall is from the question to the batch, and a part of it are the copies", [] {
    Rig rig;
    rig.ask();
    rig.finish();
    fake_cuda_pass(50'000);  // until the batch is loaded
    rig.deliver(rig.submit());
    rig.finish();
    rig.check(kBytes, 50'000 + kBytes);
    CHECK_EQUAL(rig.times->read().bytes, kBytes);
  });

  check::promise("a stream that computes does not stall, and the side stream does not copy", [] {
    Rig rig;
    fake_cuda_hold(rig.stream, 1);
    rig.ask();
    const auto ticket = rig.submit();  // the copy waits
    fake_cuda_pass(70'000);
    fake_cuda_hold(rig.stream, 0);
    CHECK(rig.transfer->wait_until(ticket, never()));
    rig.check(kBytes, 0);
    fake_cuda_hold(rig.stream, 1);
    rig.ask();
    rig.deliver(ticket);
    fake_cuda_pass(70'000);
    fake_cuda_hold(rig.stream, 0);
    rig.finish();
    rig.check(kBytes, 0);
  });

  check::promise("who asks again, as the batch has failed, stalls from then on", [] {
    Rig rig;
    rig.ask();
    rig.finish();
    fake_cuda_pass(1'000);
    rig.ask();
    rig.finish();
    fake_cuda_pass(400);
    rig.deliver(rig.submit());
    rig.finish();
    rig.check(kBytes, 400 + kBytes);
  });

  check::promise("without a question there is no answer, nor on another stream", [] {
    Rig rig;
    void* const other = fake_cuda_make_stream(0);
    rig.deliver(rig.submit());
    rig.ask();
    rig.transfer->deliver(rig.submit(), static_cast<CudaStream>(other));
    CHECK_EQUAL(fake_cuda_synchronize(other), 0);
    rig.finish();
    rig.check(2 * kBytes, 0);
    fake_cuda_destroy_stream(other);
  });

  check::promise("in a capture nothing is recorded", [] {
    Rig rig;
    const auto ticket = rig.submit();
    rig.ask();
    fake_cuda_capture(rig.stream, 1);
    rig.ask();
    CHECK_THROWS(CudaError, rig.deliver(ticket));
    rig.check(rig.transfer->wait_until(ticket, never()) ? kBytes : 0, 0);
    CHECK_EQUAL(fake_cuda_capture_status(rig.stream), 1);
    fake_cuda_capture(rig.stream, 0);
    rig.deliver(ticket);
    rig.finish();
    rig.check(kBytes, 0);
  });
}

void check_reading() {
  check::promise("nobody waits for a span, and it counts when the transfer is gone", [] {
    Rig rig;
    rig.ask();
    fake_cuda_hold(rig.stream, 1);
    const auto first = rig.submit();
    rig.check(0, 0);
    rig.deliver(first);
    rig.check(0, 0);
    fake_cuda_hold(rig.stream, 0);
    CHECK(rig.transfer->wait_until(first, never()));
    rig.transfer.reset();
    rig.finish();
    rig.check(kBytes, kBytes);
  });

  check::promise("however far ahead the host is, there is an end to the events", [] {
    Rig rig;
    const auto ticket = rig.submit();
    CHECK(rig.transfer->wait_until(ticket, never()));
    fake_cuda_hold(rig.stream, 1);
    const auto before = fake_cuda_count("events");
    for (int i = 0; i < 1000; ++i) {
      rig.ask();
      rig.deliver(ticket);
    }
    CHECK(fake_cuda_count("events") < before + 140);
    fake_cuda_hold(rig.stream, 0);
    rig.finish();
    rig.check(kBytes, 0);
    for (int i = 0; i < 300; ++i) {
      rig.ask();
      rig.deliver(rig.submit());
      rig.finish();
    }
    CHECK(fake_cuda_count("events") < before + 140);
    // 301 copies and 300 stalls: those after the last timed one do not count yet, and the first
    // timed stall counts for some before.
    rig.check(289 * kBytes, 299 * kBytes);
  });

  check::promise("the first batches are timed, then some for all", [] {
    Rig rig;
    const auto load = [&](std::int64_t stall_ns) {
      rig.ask();
      rig.finish();
      fake_cuda_pass(stall_ns);
      rig.deliver(rig.submit());
      rig.finish();
    };
    std::int64_t stall_ns = 0;
    for (int i = 0; i < TimedBatches::kAllTimed; ++i) {
      load(1'000 * i);
      stall_ns += 1'000 * i + kBytes;
      rig.check((i + 1) * kBytes, stall_ns);
    }
    std::int64_t copy_ns = TimedBatches::kAllTimed * kBytes;
    for (int round = 0; round < 3; ++round) {
      for (int i = 1; i < TimedBatches::kTimedEvery; ++i) load(1'000'000);
      rig.check(copy_ns, stall_ns);
      load(500);
      stall_ns += TimedBatches::kTimedEvery * (500 + kBytes);
      copy_ns += TimedBatches::kTimedEvery * kBytes;
      rig.check(copy_ns, stall_ns);
    }
  });

  check::promise("any thread may read while others load", [] {
    const auto device = CudaDevice::get(0, FAKE_CUDA);
    const auto times = std::make_shared<StreamTimes>(device);
    std::atomic<bool> ends{false};
    std::thread reader([&] {
      while (!ends) times->read();
    });
    std::vector<std::thread> loaders;
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      loaders.emplace_back([&, seed] {
        loop::Loop loop(device, seed, {}, times);
        loop.run(60, seed == 1);
      });
    }
    for (std::thread& thread : loaders) thread.join();
    ends = true;
    reader.join();
    const StreamFigures figures = times->read();
    CHECK(figures.copy_ns > 0);
    CHECK(figures.stall_ns > 0);
  });
}

void check_failures() {
  check::promise("a question, an answer that fails: CudaError, and it can be repeated", [] {
    Rig rig;
    const auto ticket = rig.submit();
    CHECK(rig.transfer->wait_until(ticket, never()));
    rig.ask();
    for (const char* call : {"cuCtxPushCurrent", "cuStreamIsCapturing", "cuEventRecord"}) {
      fake_cuda_fail(call, 1, 2, 1);
      CHECK(CHECK_THROWS(CudaError, rig.ask()).find(call) == 0);
      rig.ask();
      fake_cuda_fail(call, 1, 2, 1);
      CHECK(CHECK_THROWS(CudaError, rig.deliver(ticket)).find(call) == 0);
      rig.deliver(ticket);
    }
    rig.finish();
    rig.check(kBytes, 0);
  });

  check::promise("where events are short, the same", [] {
    Rig rig(fresh_device());
    int failed = 0;
    const auto retried = [&](auto&& call) {
      fake_cuda_fail("cuEventCreate", 1, 2, 1);
      failed += CHECK_THROWS(CudaError, call()).find("cuEventCreate") == 0;
      call();
    };
    retried([&] { rig.ask(); });
    Transfer::Ticket ticket = -1;
    retried([&] { ticket = rig.submit(); });
    retried([&] { rig.deliver(ticket); });
    CHECK_EQUAL(failed, 3);
    rig.finish();
    rig.check(kBytes, kBytes);
  });

  check::promise("a time that cannot be had is not counted, and no error", [] {
    Rig rig;
    for (int i = 0; i < 2; ++i) {
      rig.ask();
      rig.deliver(rig.submit());
      rig.finish();
    }
    fake_cuda_fail("cuEventElapsedTime", 1, 400, 1);
    rig.check(kBytes, 2 * kBytes);
    fake_cuda_fail("cuCtxPushCurrent", 1, 2, 1);
    rig.check(kBytes, 2 * kBytes);
  });

  check::promise("a lost device, and a forked child", [] {
    Rig rig(fresh_device());
    rig.ask();
    rig.deliver(rig.submit());
    rig.finish();
    rig.check(kBytes, kBytes);
    CHECK_EQUAL(status_of_child([&] {
                  rig.check(0, 0);
                  CHECK_THROWS(StoppedError, rig.ask());
                }),
                0);
    rig.ask();
    rig.deliver(rig.submit());
    fake_cuda_stick(700);
    rig.check(kBytes, kBytes);
    CHECK_THROWS(CudaError, rig.ask());
    rig.transfer.reset();
    fake_cuda_forgive();
  });
}

}  // namespace

int main() {
  fake_cuda_stop_clock(1);
  check_spans();
  check_reading();
  check_failures();
  CHECK_EQUAL(fake_cuda_count("misuses"), 0);
  return 0;
}
