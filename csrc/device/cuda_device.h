// One GPU as all loaders of this process share it: its context, the side stream, events.
#pragma once

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

// NOTE [Context]. Whoever calls the driver does so inside a Scope: the device's primary context,
// which is torch's, is pushed onto the calling thread and popped again, so that torch's current
// device stays what it is and no context is made on another GPU. The thread's capture mode is
// relaxed meanwhile: a graph that somebody captures in another thread is not broken by us.
//
// NOTE [Poison]. After some errors (an illegal address, a failed launch, ...) nothing works any
// more on a device. The first of them is kept and thrown by every later call; nothing is freed.
//
// Thread-safe. Lives as long as the process, as do its context, stream and events; in a forked
// child every call throws StoppedError, for a driver that was initialised before fork() cannot be
// used there.
class CudaDevice {
 public:
  // The device of that number, as CUDA_VISIBLE_DEVICES and torch count. The first call initialises
  // the driver. Throws CudaError, and StoppedError in a child of a process that had initialised it.
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
  // CUDA's version as the driver tells it: 13000 is 13.0.
  int driver_version() const { return driver_version_; }
  // The NUMA node beside the GPU; -1: unknown, or there is but one.
  int numa_node() const { return numa_node_; }
  // The stream of all copies; does not synchronise with the legacy default stream.
  CudaStream side_stream() const { return side_stream_; }
  // Held by whoever gives the side stream the work of a batch, so that it comes in one piece: what
  // one batch waits for takes no time of another's.
  Mutex& side_mutex() FL_RETURN_CAPABILITY(side_mutex_) { return side_mutex_; }

  // Throws StoppedError in a forked child, and the first sticky error.
  void check_usable() const FL_EXCLUDES(mutex_);
  // Throws CudaError unless the call succeeded: "cuMemcpyHtoDAsync: CUDA_ERROR_...: (text)". A
  // sticky error poisons the device. `call`: the driver's function.
  void check(CudaResult result, const char* call) const FL_EXCLUDES(mutex_);
  // False after a sticky error, and in a forked child: then nothing may be given back.
  bool usable() const;

  // An event, new or from those that nobody has any more. When the last one who has it drops it,
  // whoever waits on it must have been enqueued before. REQUIRES: inside a Scope. Throws CudaError.
  SharedEvent take_event();

  // The kernel of that name in a PTX text, which lives as long as the process. Its module is loaded
  // at the first call, which the driver may take a second for. REQUIRES: inside a Scope. Throws
  // CudaError.
  CudaFunction kernel(const char* ptx, const std::string& name);

 private:
  CudaDevice(const Driver& driver, int ordinal);
  void give_event(CudaEvent event) noexcept FL_EXCLUDES(mutex_);

  const std::uint64_t generation_ = fork_generation();
  const Driver& driver_;
  const int ordinal_;
  int driver_version_ = 0;
  int numa_node_ = -1;
  CudaContext context_ = nullptr;
  CudaStream side_stream_ = nullptr;
  Mutex side_mutex_;

  mutable Mutex mutex_;
  // The first sticky error.
  mutable std::string poison_ FL_GUARDED_BY(mutex_);
  mutable CudaResult poison_code_ FL_GUARDED_BY(mutex_) = kCudaSuccess;
  // Set under the mutex after these, never reset; read without it, so that calls need no lock.
  mutable std::atomic<bool> is_poisoned_{false};
  std::vector<CudaEvent> spare_events_ FL_GUARDED_BY(mutex_);

  Mutex modules_mutex_;  // held while one is loaded
  std::map<const char*, CudaModule> modules_ FL_GUARDED_BY(modules_mutex_);
  std::map<std::pair<CudaModule, std::string>, CudaFunction> kernels_ FL_GUARDED_BY(modules_mutex_);
};

}  // namespace fastload
