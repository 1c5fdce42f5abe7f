#include "device/cuda_device.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "cuda_fixtures.h"
#include "fake_cuda.h"

using namespace fastload;
using cuda_fixtures::fresh_device;
using cuda_fixtures::status_of_child;

namespace {

const Driver& driver() { return load_driver(FAKE_CUDA); }

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Whether calls that need a context find one.
bool context_is_current() {
  CudaEvent event = nullptr;
  if (driver().cuEventCreate(&event, 2) != kCudaSuccess) return false;
  return driver().cuEventDestroy(event) == kCudaSuccess;
}

int capture_mode() {
  int mode = 2;
  driver().cuThreadExchangeStreamCaptureMode(&mode);
  int now = mode;
  driver().cuThreadExchangeStreamCaptureMode(&now);
  return mode;
}

SharedEvent an_event_of(CudaDevice& device) {
  const CudaDevice::Scope scope(device);
  return device.take_event(EventKind::kOrdering);
}

}  // namespace

int main() {
  check::promise("a library that is missing, or is no driver, is named", [] {
    const std::string missing = CHECK_THROWS(CudaError, CudaDevice::get(0, "libno_such_driver.so"));
    CHECK(has(missing, "libno_such_driver.so"));
    const std::string foreign = CHECK_THROWS(CudaError, CudaDevice::get(0, "libc.so.6"));
    CHECK(has(foreign, "libc.so.6 has no function cuInit"));
  });

  check::promise("a child may use CUDA if its parent has not", [] {
    const int status = status_of_child([] {
      const auto device = CudaDevice::get(0, FAKE_CUDA);
      device->check_usable();
      const CudaDevice::Scope scope(*device);
      CHECK(context_is_current());
    });
    CHECK_EQUAL(status, 0);
    CHECK_EQUAL(fake_cuda_calls("cuInit"), 0);
  });

  check::promise("a child whose parent used CUDA elsewhere is told what to do", [] {
    const int status = status_of_child([] {
      CHECK_EQUAL(driver().cuInit(0), kCudaSuccess);
      const int child = status_of_child([] {
        const std::string what = CHECK_THROWS(CudaError, CudaDevice::get(0, FAKE_CUDA));
        CHECK(has(what, "cuInit: ") && has(what, "\"spawn\" or \"forkserver\""));
      });
      CHECK_EQUAL(child, 0);
    });
    CHECK_EQUAL(status, 0);
  });

  check::promise("no device, and none of that number", [] {
    fake_cuda_set_devices(0);
    const std::string none = CHECK_THROWS(CudaError, CudaDevice::get(0, FAKE_CUDA));
    CHECK(none == "cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected");
    fake_cuda_set_devices(2);
    for (const int ordinal : {-1, 2}) {
      const std::string what = CHECK_THROWS(CudaError, CudaDevice::get(ordinal, FAKE_CUDA));
      CHECK(has(what, "no CUDA device " + std::to_string(ordinal)) && has(what, "sees is 2"));
    }
    CHECK_EQUAL(fake_cuda_count("contexts"), 0);
  });

  check::promise("whatever fails while a device is made is named, and tried again later", [] {
    fake_cuda_set_devices(1);
    for (const char* call :
         {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDriverGetVersion",
          "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode"}) {
      for (const int code : {2, 700, 12345}) {
        fake_cuda_fail(call, 1, code, 1);
        const std::string what = CHECK_THROWS(CudaError, CudaDevice::get(0, FAKE_CUDA));
        CHECK(what.starts_with(std::string(call) + ": CUDA"));
        fake_cuda_forgive();
        CHECK(!context_is_current());
        CHECK_EQUAL(capture_mode(), 0);
        CHECK_EQUAL(fake_cuda_count("streams"), 0);
      }
    }
    CHECK_EQUAL(fake_cuda_count("misuses"), 0);
  });

  check::promise("one device for all threads, and what it tells about itself", [] {
    fake_cuda_set_version(12040);
    fake_cuda_fail("cuDeviceGetPCIBusId", 1, 801, -1);  // no reason not to work
    std::array<std::shared_ptr<CudaDevice>, 8> found;
    const auto retained = fake_cuda_calls("cuDevicePrimaryCtxRetain");
    {
      std::vector<std::thread> threads;
      for (auto& device : found) {
        threads.emplace_back([&device] { device = CudaDevice::get(0, FAKE_CUDA); });
      }
      for (std::thread& thread : threads) thread.join();
    }
    fake_cuda_forgive();
    CHECK_EQUAL(fake_cuda_calls("cuDevicePrimaryCtxRetain"), retained + 1);
    for (const auto& device : found) CHECK(device != nullptr && device == found[0]);
    CHECK_EQUAL(found[0]->ordinal(), 0);
    CHECK_EQUAL(found[0]->driver_version(), 12040);
    CHECK_EQUAL(found[0]->numa_node(), -1);
    CHECK(fresh_device() != found[0]);
    CHECK_EQUAL(fake_cuda_count("streams"), 0);
  });

  check::promise("a scope makes the context current, and leaves the thread as it was", [] {
    const auto device = CudaDevice::get(0, FAKE_CUDA);
    CHECK(!context_is_current());
    {
      const CudaDevice::Scope scope(*device);
      CHECK(context_is_current());
      CHECK_EQUAL(capture_mode(), 2);
      const CudaDevice::Scope inner(*fresh_device());
      CHECK(context_is_current());
    }
    CHECK(!context_is_current());
    // As in a thread of torch, with a device and a capture mode of its own.
    CudaContext other = nullptr;
    CudaContext after = nullptr;
    CHECK_EQUAL(driver().cuDevicePrimaryCtxRetain(&other, fresh_device()->ordinal()), 0);
    CHECK_EQUAL(driver().cuCtxPushCurrent(other), 0);
    int mode = 1;
    CHECK_EQUAL(driver().cuThreadExchangeStreamCaptureMode(&mode), 0);
    {
      const CudaDevice::Scope scope(*device);
    }
    CHECK_EQUAL(capture_mode(), 1);
    CHECK_EQUAL(driver().cuThreadExchangeStreamCaptureMode(&mode), 0);
    CHECK_EQUAL(driver().cuCtxPopCurrent(&after), 0);
    CHECK(after == other);
    for (const char* call : {"cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode"}) {
      fake_cuda_fail(call, 1, 1, 1);
      CHECK(has(CHECK_THROWS(CudaError, const CudaDevice::Scope scope(*device)), call));
      CHECK(!context_is_current());
      CHECK_EQUAL(capture_mode(), 0);
    }
    CHECK(device->usable());
  });

  check::promise("a graph that somebody captures is not broken from a scope", [] {
    const auto device = CudaDevice::get(0, FAKE_CUDA);
    void* stream = fake_cuda_make_stream(0);
    fake_cuda_capture(stream, 1);
    const CudaDevice::Scope scope(*device);
    CHECK_EQUAL(driver().cuStreamSynchronize(nullptr), 0);  // else "unsafe": 900
    CHECK_EQUAL(fake_cuda_capture_status(stream), 1);
    fake_cuda_capture(stream, 0);
    fake_cuda_destroy_stream(stream);
  });

  check::promise("side streams are used again; the fifth user at a time shares one", [] {
    const auto device = fresh_device();
    const CudaDevice::Scope scope(*device);
    fake_cuda_fail("cuStreamCreateWithPriority", 1, 2, 1);
    CHECK(has(CHECK_THROWS(CudaError, device->take_side_stream()), "cuStreamCreateWithPriority: "));
    for (int i = 0; i < 10; ++i) CHECK(device->take_side_stream()->handle() != nullptr);
    CHECK_EQUAL(fake_cuda_count("streams"), 1);
    std::vector<std::shared_ptr<SideStream>> taken;
    std::map<CudaStream, int> users;
    for (int i = 0; i < 12; ++i) {
      taken.push_back(device->take_side_stream());
      ++users[taken.back()->handle()];
      CHECK_EQUAL(users.size(), std::min(i + 1, 4));
    }
    for (const auto& [stream, count] : users) CHECK_EQUAL(count, 3);
    const CudaStream free = taken[5]->handle();
    std::erase_if(taken, [&](const auto& side) { return side->handle() == free; });
    CHECK(device->take_side_stream()->handle() == free);
    CHECK_EQUAL(fake_cuda_count("streams"), 4);
  });

  check::promise("events are used again, each for its kind", [] {
    const auto device = CudaDevice::get(0, FAKE_CUDA);
    const CudaDevice::Scope scope(*device);
    const auto made = fake_cuda_calls("cuEventCreate");
    for (const EventKind kind : {EventKind::kOrdering, EventKind::kTiming}) {
      for (int round = 0; round < 10; ++round) {
        std::set<SharedEvent> events;
        for (int i = 0; i < 5; ++i) CHECK(events.insert(device->take_event(kind)).second);
      }
    }
    CHECK_EQUAL(fake_cuda_calls("cuEventCreate"), made + 10);
    std::vector<SharedEvent> taken;
    for (int i = 0; i < 5; ++i) taken.push_back(device->take_event(EventKind::kTiming));
    fake_cuda_fail("cuEventCreate", 1, 2, 1);
    CHECK(has(CHECK_THROWS(CudaError, device->take_event(EventKind::kTiming)),
              "cuEventCreate: CUDA_ERROR_OUT_OF"));
  });

  check::promise("only timing events record a time", [] {
    const auto device = CudaDevice::get(0, FAKE_CUDA);
    const CudaDevice::Scope scope(*device);
    for (const EventKind kind : {EventKind::kOrdering, EventKind::kTiming}) {
      const SharedEvent event = device->take_event(kind);
      CHECK_EQUAL(driver().cuEventRecord(event.get(), nullptr), kCudaSuccess);
      CHECK_EQUAL(driver().cuStreamSynchronize(nullptr), kCudaSuccess);
      float milliseconds = -1;
      const CudaResult result =
          driver().cuEventElapsedTime(&milliseconds, event.get(), event.get());
      CHECK((result == kCudaSuccess) == (kind == EventKind::kTiming));
    }
  });

  check::promise("an error says what failed, and does no harm unless it is a sticky one", [] {
    const auto device = CudaDevice::get(0, FAKE_CUDA);
    device->check(kCudaSuccess, "cuInit");
    const std::string known = CHECK_THROWS(CudaError, device->check(2, "cuMemHostAlloc"));
    CHECK(known == "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY: out of memory");
    const std::string unknown = CHECK_THROWS(CudaError, device->check(12345, "cuX"));
    CHECK(unknown == "cuX: CUDA error 12345");
    for (const int code : {1, 2, 201, 400, 600, 712, 800, 801, 900, 999}) {
      try {
        device->check(code, "cuX");
        CHECK(false);
      } catch (const CudaError& error) {
        CHECK_EQUAL(error.code(), code);
      }
      device->check_usable();
    }
    CHECK(device->usable());
  });

  check::promise("the first sticky error is kept, for that device alone", [] {
    for (const int code :
         {4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 808}) {
      const auto device = fresh_device();
      SharedEvent event = an_event_of(*device);
      const std::string first = CHECK_THROWS(CudaError, device->check(code, "cuMemcpyHtoDAsync"));
      CHECK(first.starts_with("cuMemcpyHtoDAsync: CUDA") && has(first, "outside fastload"));
      CHECK(!device->usable());
      CHECK(CHECK_THROWS(CudaError, device->check_usable()) == first);
      CHECK(CHECK_THROWS(CudaError, device->check(2, "cuEventRecord")) == first);
      CHECK(CHECK_THROWS(CudaError, device->check(719, "cuEventRecord")) == first);
      CHECK(CHECK_THROWS(CudaError, const CudaDevice::Scope scope(*device)) == first);
      event.reset();  // nothing is kept any more
      const auto again = CudaDevice::get(device->ordinal(), FAKE_CUDA);
      CHECK(again == device && !again->usable());
      CHECK(CudaDevice::get(0, FAKE_CUDA)->usable());
    }
  });

  check::promise("of errors in several threads one is the first", [] {
    const auto device = fresh_device();
    std::array<std::string, 8> texts;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      threads.emplace_back([&, i] {
        const std::string call = "call " + std::to_string(i);
        CHECK_THROWS(CudaError, device->check(700, call.c_str()));
        texts[i] = CHECK_THROWS(CudaError, device->check_usable());
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQUAL(std::set<std::string>(texts.begin(), texts.end()).size(), 1);
  });

  check::promise("in a forked child every call says so, and nothing is touched", [] {
    const auto device = CudaDevice::get(0, FAKE_CUDA);
    SharedEvent event = an_event_of(*device);
    const int status = status_of_child([&] {
      const std::string what = CHECK_THROWS(StoppedError, CudaDevice::get(0, FAKE_CUDA));
      CHECK(has(what, "\"spawn\" or \"forkserver\""));
      CHECK_THROWS(StoppedError, CudaDevice::get(5, "libno_such_driver.so"));
      CHECK(!device->usable());
      CHECK_THROWS(StoppedError, device->check_usable());
      CHECK_THROWS(StoppedError, device->check(3, "cuEventCreate"));
      CHECK_THROWS(StoppedError, const CudaDevice::Scope scope(*device));
      event.reset();
    });
    CHECK_EQUAL(status, 0);
    CHECK(device->usable());
  });

  CHECK_EQUAL(fake_cuda_count("misuses"), 0);
}
