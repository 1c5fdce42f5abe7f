#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "cuda_fixtures.h"
#include "device/pinned_memory.h"
#include "fake_cuda.h"
#include "pinned_fixtures.h"

using namespace fastload;
using namespace pinned_fixtures;
using cuda_fixtures::fresh_device;
using cuda_fixtures::status_of_child;

namespace {

// What a loader does: it reserves, takes slots, grows beyond what it reserved, gives them back.
void load(const std::shared_ptr<CudaDevice>& gpu) {
  PinnedMemory memory(gpu, kUnlimited);
  memory.reserve(2 * kMiB);
  std::vector<Part> parts;
  for (const std::size_t bytes : {kMiB, 2 * kMiB, std::size_t{100}}) {
    parts.push_back(taken(memory, bytes));
  }
  for (const Part& part : parts) give(memory, part);
}

constexpr int kSticky = 700;

// What load() calls. Where registering is refused, the driver's own memory is in it too.
struct Step {
  const char* call;
  bool registers;
};
constexpr Step kSteps[] = {
    {"cuCtxPushCurrent", true},  {"cuThreadExchangeStreamCaptureMode", true},
    {"cuMemHostRegister", true}, {"cuMemHostUnregister", true},
    {"cuCtxPushCurrent", false}, {"cuThreadExchangeStreamCaptureMode", false},
    {"cuMemHostAlloc", false},   {"cuMemFreeHost", false}};

// Runs body(device) with the nth of load()'s calls failing, for each n.
template <class Body>
void at_each(const Step& step, int code, int times, Body&& body) {
  for (int nth = 1;; ++nth) {
    const auto gpu = code == kSticky ? fresh_device() : device();
    if (!step.registers) fake_cuda_fail("cuMemHostRegister", 1, 801, -1);
    fake_cuda_fail(step.call, nth, code, times);
    const auto before = fake_cuda_calls(step.call);
    body(gpu);
    const auto count = fake_cuda_calls(step.call) - before;
    fake_cuda_forgive();
    CHECK_EQUAL(fake_cuda_count("misuses"), 0);
    if (count < nth) return;
  }
}

void check_faults() {
  check::promise("whichever call fails, there is memory, and the rest is given back", [] {
    for (const Step& step : kSteps) {
      for (const int times : {1, -1}) {
        const std::string call = step.call;
        const bool gives_back = call == "cuMemHostUnregister" || call == "cuMemFreeHost";
        at_each(step, 2, times, [&](const std::shared_ptr<CudaDevice>& gpu) {
          const auto ranges = pinned_ranges();
          load(gpu);
          CHECK(gpu->usable());
          const auto left = pinned_ranges() - ranges;
          // A slab that cannot be given back stays, and all do if their context cannot be had.
          CHECK(left <= 2);
          if (call == "cuMemHostRegister" || call == "cuMemHostAlloc") CHECK_EQUAL(left, 0);
          if (gives_back && times == 1) CHECK(left <= 1);
        });
        int mode = 0;  // as it was, where a scope could not say so
        device()->driver().cuThreadExchangeStreamCaptureMode(&mode);
      }
    }
    const auto ranges = pinned_ranges();
    load(device());
    CHECK_EQUAL(pinned_ranges(), ranges);
  });

  check::promise("a sticky error is thrown as it is, and then nothing is given back", [] {
    for (const Step& step : kSteps) {
      at_each(step, kSticky, 1, [&](const std::shared_ptr<CudaDevice>& gpu) {
        const auto given =
            fake_cuda_calls("cuMemHostUnregister") + fake_cuda_calls("cuMemFreeHost");
        std::string thrown;
        try {
          load(gpu);
        } catch (const CudaError& error) {
          thrown = error.what();
        }
        // A scope's calls are also made at the end, where nothing can be thrown.
        const std::string call = step.call;
        if (call == "cuMemHostRegister" || call == "cuMemHostAlloc") {
          CHECK(gpu->usable() == thrown.empty());
        }
        if (!thrown.empty()) {
          CHECK(!gpu->usable());
          CHECK(has(thrown, "CUDA_ERROR_ILLEGAL_ADDRESS") && has(thrown, "outside fastload"));
          CHECK_EQUAL(fake_cuda_calls("cuMemHostUnregister") + fake_cuda_calls("cuMemFreeHost"),
                      given);
        }
        int mode = 0;
        gpu->driver().cuThreadExchangeStreamCaptureMode(&mode);
      });
    }
  });
}

void check_ends() {
  check::promise("after poison slots come back, none are given out, and slabs stay", [] {
    const auto gpu = fresh_device();
    const auto ranges = pinned_ranges();
    {
      PinnedMemory memory(gpu, kUnlimited);
      const Part part = taken(memory, kMiB);
      const std::string first = CHECK_THROWS(CudaError, gpu->check(719, "cuEventQuery"));
      CHECK(CHECK_THROWS(CudaError, memory.allocate(1)) == first);
      CHECK(CHECK_THROWS(CudaError, memory.reserve(1)) == first);
      std::memset(part.data, 1, part.bytes);
      give(memory, part);
    }
    CHECK_EQUAL(pinned_ranges(), ranges + 1);
  });

  check::promise("a forked child has no slabs, and leaves the parent's alone", [] {
    const auto memory = std::make_unique<PinnedMemory>(device(), kUnlimited);
    const Part part = taken(*memory, kMiB);
    CHECK_EQUAL(status_of_child([&] {
                  CHECK_THROWS(StoppedError, memory->allocate(1));
                  CHECK_THROWS(StoppedError, memory->reserve(1));
                  give(*memory, part);
                  memory->~PinnedMemory();
                }),
                0);
    const int status = status_of_child([&] {
      if (freopen("/dev/null", "w", stderr) == nullptr) _exit(0);
      *const_cast<volatile std::byte*>(part.data) = std::byte{1};
    });
    CHECK(status != 0);  // what is pinned was not inherited
    CHECK(is_pinned(part));
    CHECK(part.data[0] == std::byte{0x5A});
    give(*memory, part);
  });
}

}  // namespace

int main() {
  fake_cuda_set_devices(1);
  check_faults();
  check_ends();
}
