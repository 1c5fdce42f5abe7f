#include "fake_cuda.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"
#include "device/driver.h"

using namespace fastload;

namespace {

const Driver& driver() { return load_driver(FAKE_CUDA); }

CudaStream stream() { return static_cast<CudaStream>(fake_cuda_make_stream(0)); }

CudaEvent event() {
  CudaEvent made = nullptr;
  CHECK_EQUAL(driver().cuEventCreate(&made, 2), 0);
  return made;
}

DevicePointer pointer(std::vector<std::byte>& memory) {
  return reinterpret_cast<DevicePointer>(memory.data());
}

// Registered while it lives.
struct Pinned {
  explicit Pinned(std::size_t bytes, int value) : memory(bytes, std::byte(value)) {
    CHECK_EQUAL(driver().cuMemHostRegister(memory.data(), bytes, 1), 0);
  }
  ~Pinned() { CHECK_EQUAL(driver().cuMemHostUnregister(memory.data()), 0); }
  std::vector<std::byte> memory;
};

}  // namespace

int main() {
  check::promise("nothing works before cuInit, or without a context", [] {
    CudaEvent made = nullptr;
    int count = 0;
    CHECK_EQUAL(driver().cuDeviceGetCount(&count), 3);
    CHECK_EQUAL(driver().cuInit(0), 0);
    CHECK_EQUAL(driver().cuDeviceGetCount(&count), 0);
    CHECK_EQUAL(count, 1);
    CHECK_EQUAL(driver().cuEventCreate(&made, 2), 201);
    CudaContext context = nullptr;
    CHECK_EQUAL(driver().cuDevicePrimaryCtxRetain(&context, 0), 0);
    CHECK_EQUAL(driver().cuCtxPushCurrent(context), 0);
    CHECK_EQUAL(driver().cuEventCreate(&made, 2), 0);
    CHECK_EQUAL(driver().cuEventDestroy(made), 0);
    CHECK_EQUAL(driver().cuEventDestroy(made), 400);
    CHECK_EQUAL(fake_cuda_count("misuses"), 1);
  });

  check::promise("the host runs ahead; what waits for an event sees what was before it", [] {
    for (int seed = 0; seed < 50; ++seed) {
      fake_cuda_seed(static_cast<std::uint64_t>(seed), seed % 2 * 200);
      Pinned source(1000, seed + 1);
      std::vector<std::byte> arrived(1000), seen(1000);
      const CudaStream side = stream(), consumer = stream();
      const CudaEvent ready = event();
      fake_cuda_hold(side, 1);
      CHECK_EQUAL(driver().cuMemcpyHtoDAsync(pointer(arrived), source.memory.data(), 1000, side),
                  0);
      CHECK_EQUAL(driver().cuEventRecord(ready, side), 0);
      CHECK_EQUAL(driver().cuStreamWaitEvent(consumer, ready, 0), 0);
      fake_cuda_copy(consumer, seen.data(), arrived.data(), 1000);
      CHECK_EQUAL(driver().cuEventQuery(ready), kCudaNotReady);
      CHECK(fake_cuda_busy(source.memory.data() + 999, 1));
      CHECK(fake_cuda_busy(arrived.data(), 1));
      fake_cuda_hold(side, 0);
      CHECK_EQUAL(driver().cuStreamSynchronize(consumer), 0);
      CHECK(seen == source.memory);
      CHECK(!fake_cuda_busy(source.memory.data(), 1000));
      CHECK_EQUAL(driver().cuEventQuery(ready), 0);
      CHECK_EQUAL(driver().cuEventDestroy(ready), 0);
      fake_cuda_destroy_stream(side);
      fake_cuda_destroy_stream(consumer);
    }
    fake_cuda_seed(0, 0);
    CHECK_EQUAL(fake_cuda_count("events"), 0);
    CHECK_EQUAL(fake_cuda_count("streams"), 0);
    CHECK_EQUAL(fake_cuda_count("registered"), 0);
    CHECK_EQUAL(fake_cuda_count("pageable"), 0);
  });

  check::promise("memory that is not pinned is counted, and read before the call returns", [] {
    std::vector<std::byte> source(100, std::byte(1)), arrived(100);
    const CudaStream side = stream();
    fake_cuda_hold(side, 1);
    CHECK_EQUAL(driver().cuMemcpyHtoDAsync(pointer(arrived), source.data(), 100, side), 0);
    source.assign(100, std::byte(2));
    fake_cuda_hold(side, 0);
    CHECK_EQUAL(driver().cuStreamSynchronize(side), 0);
    CHECK(arrived == std::vector<std::byte>(100, std::byte(1)));
    CHECK_EQUAL(fake_cuda_count("pageable"), 1);
    fake_cuda_destroy_stream(side);
  });

  check::promise("captures: unsafe calls of threads that are not relaxed break them", [] {
    const CudaStream captured = stream();
    fake_cuda_capture(captured, 1);
    int status = 0;
    CHECK_EQUAL(driver().cuStreamIsCapturing(captured, &status), 0);
    CHECK_EQUAL(status, 1);
    const CudaEvent any = event();
    int mode = 2;
    CHECK_EQUAL(driver().cuThreadExchangeStreamCaptureMode(&mode), 0);
    CHECK_EQUAL(mode, 0);
    CHECK_EQUAL(driver().cuEventQuery(any), 0);
    CHECK_EQUAL(fake_cuda_capture_status(captured), 1);
    CHECK_EQUAL(driver().cuThreadExchangeStreamCaptureMode(&mode), 0);
    CHECK_EQUAL(mode, 2);
    CHECK_EQUAL(driver().cuEventQuery(any), 900);
    CHECK_EQUAL(fake_cuda_capture_status(captured), 2);
    fake_cuda_capture(captured, 1);
    CHECK_EQUAL(driver().cuStreamWaitEvent(captured, any, 0), 905);
    CHECK_EQUAL(driver().cuEventDestroy(any), 0);
    fake_cuda_destroy_stream(captured);
  });

  check::promise("calls fail when they are told to, once or from then on", [] {
    const CudaEvent any = event();
    fake_cuda_fail("cuEventQuery", 2, 2, 1);
    CHECK_EQUAL(driver().cuEventQuery(any), 0);
    CHECK_EQUAL(driver().cuEventQuery(any), 2);
    CHECK_EQUAL(driver().cuEventQuery(any), 0);
    fake_cuda_fail("cuEventQuery", 1, 801, -1);
    CHECK_EQUAL(driver().cuEventQuery(any), 801);
    CHECK_EQUAL(driver().cuEventQuery(any), 801);
    fake_cuda_forgive();
    fake_cuda_fail("cuEventQuery", 1, 700, 1);
    CHECK_EQUAL(driver().cuEventQuery(any), 700);
    CHECK_EQUAL(driver().cuEventQuery(any), 700);
    fake_cuda_forgive();
    CHECK_EQUAL(driver().cuEventDestroy(any), 0);
  });

  check::promise("a call that is delayed takes long, and holds up no other call", [] {
    constexpr auto kDelay = std::chrono::milliseconds(100);
    const CudaEvent any = event();
    fake_cuda_delay("cuEventQuery", std::chrono::microseconds(kDelay).count());
    const auto start = std::chrono::steady_clock::now();
    std::atomic<bool> returned{false};
    std::thread slow([&] {
      CudaContext context = nullptr;
      CHECK_EQUAL(driver().cuDevicePrimaryCtxRetain(&context, 0), 0);
      CHECK_EQUAL(driver().cuCtxPushCurrent(context), 0);
      CHECK_EQUAL(driver().cuEventQuery(any), 0);
      returned = true;
    });
    int others = 0;
    for (int count = 0; !returned; ++others) {
      CHECK_EQUAL(driver().cuDeviceGetCount(&count), 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    slow.join();
    CHECK(std::chrono::steady_clock::now() - start >= kDelay);
    CHECK(others > 3);
    fake_cuda_forgive();
    CHECK_EQUAL(driver().cuEventDestroy(any), 0);
  });

  check::promise("a sticky error ends every wait", [] {
    const CudaStream side = stream();
    fake_cuda_hold(side, 1);
    std::atomic<int> result{-1};
    std::thread waiting([&] {
      CudaContext context = nullptr;
      CHECK_EQUAL(driver().cuDevicePrimaryCtxRetain(&context, 0), 0);
      CHECK_EQUAL(driver().cuCtxPushCurrent(context), 0);
      result = driver().cuStreamSynchronize(side);
    });
    fake_cuda_stick(719);
    waiting.join();
    CHECK_EQUAL(result.load(), 719);
    fake_cuda_forgive();
    fake_cuda_hold(side, 0);
    fake_cuda_destroy_stream(side);
  });

  check::promise("a forked child cannot use it", [] {
    const pid_t child = fork();
    if (child == 0) {
      int count = 0;
      _exit(driver().cuDeviceGetCount(&count) == 3 ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK_EQUAL(status, 0);
  });
  return 0;
}
