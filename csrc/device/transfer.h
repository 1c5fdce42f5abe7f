// Batches on their way to a GPU.
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

// Images that are delivered by a kernel. `raw`: room for raw_bytes() (pixel_launch.h).
struct PixelJob {
  ImageDelivery images;
  std::vector<std::int64_t> draws;  // of the samples (IndexSpan)
  const std::byte* from = nullptr;
  DevicePointer raw = 0;
  DevicePointer out = 0;
};

// What is to be copied of one batch.
struct Shipment {
  std::vector<HostToDevice> copies;
  // Small arrays whose places lie side by side: they are copied at once.
  std::vector<HostToDevice> packed;
  std::vector<PixelJob> pixels;
};

struct TransferStats {
  std::int64_t bytes;    // that crossed the bus
  std::int64_t copies;   // as the driver was asked for them
  std::int64_t packed;   // arrays that travelled with others
  std::int64_t kernels;  // launches
  std::int64_t waits;    // of the host, for copies that were still running
};

// NOTE [Two waits]. The memory that is written belongs to the consumer's stream, which may still
// use it for something else: the side stream waits for all that the consumer's was given before
// submit(). What is read there must have arrived: the consumer's stream waits in hand_over(). The
// host waits for neither. Whoever keeps memory on either side keeps it until done().
//
// NOTE [Ahead]. A host that runs far ahead of the GPU is stopped by whoever bounds the batches
// whose copies are running, with wait_until(); else the pinned memory that they hold would grow.
//
// The copies of one iterator. One thread at a time. The destructor gives nothing back that is still
// in use: it waits, unless the device is no longer usable.
class Transfer {
 public:
  using Ticket = std::int64_t;
  using Clock = std::chrono::steady_clock;
  static constexpr Ticket kNone = -1;

  // `staging`: pinned memory of `device`. `times`: of it too.
  Transfer(std::shared_ptr<CudaDevice> device, std::shared_ptr<SlotPool> staging,
           std::shared_ptr<StreamTimes> times);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  struct Answer {
    Ticket oldest;     // all before it are done
    bool is_captured;  // a graph is, from the consumer's stream: neither submit() nor hand_over()
  };

  // The consumer has nothing more to do until it is given a batch: until hand_over() to the same
  // stream, this counts as a stall. Throws CudaError if the device is lost.
  Answer ask(CudaStream consumer);
  // Throws CudaError while a graph is captured from `consumer`, and if the device is lost.
  void check(CudaStream consumer) const;
  // Enqueues them on the side stream. `consumer`: to whose memory they go. `first`: a batch that is
  // handed over to it before that; it may be handed over again. Throws CudaError, after which none
  // of them is running any more; while a graph is captured from `consumer` none begins. Throws
  // std::bad_alloc, and what launch_pixels() throws, likewise.
  Ticket submit(const Shipment& shipment, CudaStream consumer, Ticket first = kNone);
  // What `consumer` is given from now on sees the batch. Throws CudaError, also while a graph is
  // captured from `consumer`; then the batch can still be handed over afterwards.
  void hand_over(Ticket ticket, CudaStream consumer);
  // Whether the copies have been made, so that neither side is in use any more. Throws CudaError.
  bool done(Ticket ticket);
  // The same, after waiting until they have, but not beyond the deadline. Throws CudaError.
  bool wait_until(Ticket ticket, Clock::time_point deadline);
  const TransferStats& stats() const { return stats_; }

 private:
  struct Running {
    SharedEvent ready;
    Lease staged;  // what was packed, and windows
  };

  // A copy from the staging memory.
  struct Staged {
    DevicePointer to;
    std::size_t offset, bytes;
  };

  struct Asked {
    SharedEvent event;
    CudaStream consumer = nullptr;
  };

  bool is_captured(CudaStream consumer) const;
  void check_not_captured(CudaStream consumer) const;
  void record(const SharedEvent& event, CudaStream stream) const;
  void give(Ticket ticket, CudaStream consumer);
  Lease stage(const Shipment& shipment, std::vector<Staged>& staged);
  void enqueue(const Shipment& shipment, const Lease& staging, const std::vector<Staged>& staged)
      FL_REQUIRES(device_->side_mutex());
  void copy(DevicePointer to, const std::byte* from, std::size_t bytes)
      FL_REQUIRES(device_->side_mutex());
  void drop_done();
  const Running* find(Ticket ticket) const;

  const std::shared_ptr<CudaDevice> device_;
  const std::shared_ptr<SlotPool> staging_;
  const std::shared_ptr<StreamTimes> times_;
  Asked asked_;  // without an event: nobody has
  Ticket next_ = 0;
  std::deque<Running> running_;  // in order; those in front that are done are dropped
  Ticket waited_for_ = -1;
  TransferStats stats_{};
};

}  // namespace fastload
