// Copies batches to a GPU.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "batch/pixels.h"
#include "batch/slot_pool.h"
#include "device/cuda_device.h"
#include "device/stream_times.h"

namespace fastload {

struct HostToDevice {
  DevicePointer to;
  const std::byte* from;
  std::size_t bytes;
};

// Images that are delivered by a kernel. `raw`: raw_bytes() of device memory (pixel_launch.h).
struct PixelJob {
  ImageDelivery images;
  std::vector<std::int64_t> draws;  // of the samples (IndexSpan)
  const std::byte* from = nullptr;
  DevicePointer raw = 0;
  DevicePointer out = 0;
};

// The copies and kernels of one batch.
struct Shipment {
  std::vector<HostToDevice> copies;
  // Small arrays whose targets are close together: they share one copy.
  std::vector<HostToDevice> packed;
  std::vector<PixelJob> pixels;
};

struct TransferStats {
  std::int64_t bytes;    // copied to the GPU
  std::int64_t copies;   // calls of the driver
  std::int64_t packed;   // arrays that shared a copy
  std::int64_t kernels;  // launches
  std::int64_t waits;    // of the host, for copies that were running
};

// NOTE [Two waits]. The memory that is written belongs to the consumer's stream, which may still
// use it for other work: the side stream waits for all work that was enqueued on the consumer's
// stream before submit(). Each transfer has its own side stream (take_side_stream()), so that it
// waits for no other loader's consumer. The consumer must not read before the copy: its stream
// waits in deliver(). The host waits for neither. The caller keeps sources and targets alive until
// done().
//
// The events that order streams record no time; some batches have timing events in addition
// (NOTE [Sampled times]).
//
// NOTE [Ahead]. A host may run far ahead of the GPU. The caller bounds how many batches are in
// copying, with wait_until(); else the pinned memory that they hold would grow.
//
// The copies of one iterator. Not thread-safe: one thread at a time. The destructor waits for
// running copies, unless the device is no longer usable.
class Transfer {
 public:
  using Ticket = std::int64_t;
  using Clock = std::chrono::steady_clock;
  static constexpr Ticket kNone = -1;

  // `staging`: pinned memory of `device`. `times`: of the same device. Throws CudaError if the
  // device has failed, or has no stream left.
  Transfer(std::shared_ptr<CudaDevice> device, std::shared_ptr<SlotPool> staging,
           std::shared_ptr<StreamTimes> times);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  struct Answer {
    Ticket oldest;     // the first ticket that is not done
    bool is_captured;  // the consumer's stream captures a graph: do not submit() or deliver()
  };

  // States that the consumer's stream has no further work: the time until deliver() to the same
  // stream counts as a stall. Throws CudaError if the device has failed.
  Answer ask(CudaStream consumer);
  // Throws CudaError while a graph is captured from `consumer`, and if the device has failed.
  void check(CudaStream consumer) const;
  // Enqueues the copies and kernels on the side stream and returns their ticket. `consumer`: the
  // stream that owns the targets. `first`: a batch that is delivered to it before that; it may be
  // delivered again. Throws CudaError, also while a graph is captured from `consumer`,
  // std::bad_alloc, and as launch_pixels(); none of the copies is running afterwards.
  Ticket submit(const Shipment& shipment, CudaStream consumer, Ticket first = kNone);
  // Makes the batch visible to work that is enqueued on `consumer` from now on. Throws CudaError,
  // also while a graph is captured from `consumer`; then the batch can be delivered afterwards.
  void deliver(Ticket ticket, CudaStream consumer);
  // Whether the copies have ended, so that sources and targets are no longer used. Throws
  // CudaError.
  bool done(Ticket ticket);
  // As done(), after waiting for the copies, but not beyond the deadline. Throws CudaError.
  bool wait_until(Ticket ticket, Clock::time_point deadline);
  const TransferStats& stats() const { return stats_; }

 private:
  struct Running {
    SharedEvent ready;
    Lease staged;  // packed arrays and windows
  };

  // A copy from the staging memory.
  struct Staged {
    DevicePointer to;
    std::size_t offset, bytes;
  };

  // The last ask(), until its answer.
  struct Asked {
    bool is_open = false;
    CudaStream consumer = nullptr;
    int batches = 0;    // for which the stall counts; 0: it is not timed
    SharedEvent event;  // nullptr: it is not timed
  };

  bool is_captured(CudaStream consumer) const;
  void check_not_captured(CudaStream consumer) const;
  void record(const SharedEvent& event, CudaStream stream) const;
  void make_visible(Ticket ticket, CudaStream consumer);
  void end_stall(CudaStream consumer);
  Lease stage(const Shipment& shipment, std::vector<Staged>& staged);
  void enqueue(const Shipment& shipment, const Lease& staging, const std::vector<Staged>& staged)
      FL_REQUIRES(side_->mutex());
  void copy(DevicePointer to, const std::byte* from, std::size_t bytes) FL_REQUIRES(side_->mutex());
  void drop_done();
  const Running* find(Ticket ticket) const;

  const std::shared_ptr<CudaDevice> device_;
  const std::shared_ptr<SlotPool> staging_;
  const std::shared_ptr<StreamTimes> times_;
  const std::shared_ptr<SideStream> side_;
  Asked asked_;
  TimedBatches timed_stalls_, timed_copies_;
  Ticket next_ = 0;
  std::deque<Running> running_;  // in order; drop_done() removes those in front
  Ticket waited_for_ = -1;
  TransferStats stats_{};
};

}  // namespace fastload
