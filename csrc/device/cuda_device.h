// One GPU, shared by all loaders of the process: its context, side streams, events.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "device/driver.h"

namespace fastload {

using SharedEvent = std::shared_ptr<CUevent_st>;

// Ordering events record no time: drivers record, wait for and query them several times faster.
enum class EventKind { kOrdering, kTiming };

// A stream for copies. It does not synchronise with the legacy default stream.
class SideStream {
 public:
  explicit SideStream(CudaStream handle) : handle_(handle) {}
  CudaStream handle() const { return handle_; }
  // Held while the work of a batch is enqueued, so that the work of two batches is not mixed.
  Mutex& mutex() FL_RETURN_CAPABILITY(mutex_) { return mutex_; }

 private:
  const CudaStream handle_;
  Mutex mutex_;
};

// NOTE [Context]. Every call of the driver is made inside a Scope. It pushes the device's primary
// context, which torch uses too, onto the calling thread and pops it at the end, so that torch's
// current device does not change and no context is created on another GPU. Meanwhile the thread's
// capture mode is relaxed, so that a graph captured in another thread stays valid.
//
// NOTE [Poison]. After a sticky error (an illegal address, a failed launch, ...) a device cannot be
// used any more. The first such error is kept and thrown by every later call; nothing is freed.
//
// Thread-safe. Lives as long as the process, as do its context, stream and events. In a forked
// child every call throws StoppedError: a driver that was initialised before fork() cannot be used
// there.
class CudaDevice {
 public:
  // The device with this number, in the order of CUDA_VISIBLE_DEVICES, as in torch. The first call
  // initialises the driver. Throws CudaError, and StoppedError if a parent process initialised it.
  static std::shared_ptr<CudaDevice> get(int ordinal, const std::string& library = kCudaLibrary);

  class Scope {
   public:
    explicit Scope(const CudaDevice& device);  // throws as check_usable()
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const CudaDevice& device_;
    int capture_mode_;
  };

  const Driver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  // The CUDA version that the driver reports: 13000 is 13.0.
  int driver_version() const { return driver_version_; }
  // The NUMA node next to the GPU; -1 if it is unknown or the machine has one node.
  int numa_node() const { return numa_node_; }
  // Throws StoppedError in a forked child, and the first sticky error after one.
  void check_usable() const FL_EXCLUDES(mutex_);
  // Throws CudaError unless the call succeeded: "cuMemcpyHtoDAsync: CUDA_ERROR_...: (text)". A
  // sticky error poisons the device. `call`: the driver's function.
  void check(CudaResult result, const char* call) const FL_EXCLUDES(mutex_);
  // False after a sticky error and in a forked child: then nothing may be freed.
  bool usable() const;

  // An event, new or used before. It is used again once the last reference is dropped, so every
  // wait for it must be enqueued by then. REQUIRES: inside a Scope. Throws CudaError.
  SharedEvent take_event(EventKind kind);

  // A side stream, in use until the last reference is dropped: one that is not in use, or a new
  // one; if kMaxSideStreams are in use, the one with the fewest users. Copies on a stream wait for
  // all consumers whose batches were enqueued on it before, so loaders should not share one.
  // REQUIRES: inside a Scope. Throws CudaError.
  std::shared_ptr<SideStream> take_side_stream() FL_EXCLUDES(streams_mutex_);
  // Bounds what a process with many iterators occupies: GPUs have few copy engines and queues.
  static constexpr std::size_t kMaxSideStreams = 4;

  // The kernel with this name in a PTX text, which must live as long as the process. The first call
  // loads its module, which may take the driver a second. REQUIRES: inside a Scope. Throws
  // CudaError.
  CudaFunction kernel(const char* ptx, const std::string& name);

 private:
  CudaDevice(const Driver& driver, int ordinal);
  void give_event(EventKind kind, CudaEvent event) noexcept FL_EXCLUDES(mutex_);
  std::vector<CudaEvent>& spare_events(EventKind kind) FL_REQUIRES(mutex_) {
    return spare_events_[static_cast<std::size_t>(kind)];
  }

  const std::uint64_t generation_ = fork_generation();
  const Driver& driver_;
  const int ordinal_;
  int driver_version_ = 0;
  int numa_node_ = -1;
  CudaContext context_ = nullptr;

  mutable Mutex mutex_;
  // The first sticky error.
  mutable std::string poison_ FL_GUARDED_BY(mutex_);
  mutable CudaResult poison_code_ FL_GUARDED_BY(mutex_) = kCudaSuccess;
  // Set under the mutex after these, never reset; read without it, so that calls need no lock.
  mutable std::atomic<bool> is_poisoned_{false};
  std::array<std::vector<CudaEvent>, 2> spare_events_ FL_GUARDED_BY(mutex_);  // by EventKind

  Mutex streams_mutex_;  // held while a stream is created
  std::vector<std::shared_ptr<SideStream>> side_streams_ FL_GUARDED_BY(streams_mutex_);

  Mutex modules_mutex_;  // held while a module is loaded
  std::map<const char*, CudaModule> modules_ FL_GUARDED_BY(modules_mutex_);
  std::map<std::pair<CudaModule, std::string>, CudaFunction> kernels_ FL_GUARDED_BY(modules_mutex_);
};

}  // namespace fastload
