#include "device/transfer.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "device/pixel_launch.h"

namespace fastload {
namespace {

// How often a waiting host queries an event, since events have no wait with a deadline. Balances
// the CPU time of the query against the delay of the host.
constexpr auto kQueryInterval = std::chrono::microseconds(50);

// The bytes from the first packed array to the end of the last; sets `first` to where they start.
std::size_t span_bytes(const std::vector<HostToDevice>& packed, DevicePointer& first) {
  if (packed.empty()) return 0;
  DevicePointer last = 0;
  first = packed.front().to;
  for (const HostToDevice& array : packed) {
    first = std::min(first, array.to);
    last = std::max(last, array.to + array.bytes);
  }
  return last - first;
}

std::shared_ptr<SideStream> side_stream_of(CudaDevice& device) {
  const CudaDevice::Scope scope(device);
  return device.take_side_stream();
}

}  // namespace

Transfer::Transfer(std::shared_ptr<CudaDevice> device, std::shared_ptr<SlotPool> staging,
                   std::shared_ptr<StreamTimes> times)
    : device_(std::move(device)),
      staging_(std::move(staging)),
      times_(std::move(times)),
      side_(side_stream_of(*device_)) {}

Transfer::~Transfer() {
  if (running_.empty() || !device_->usable()) return;
  try {
    const CudaDevice::Scope scope(*device_);
    for (drop_done(); !running_.empty(); drop_done()) std::this_thread::sleep_for(kQueryInterval);
  } catch (const std::exception&) {
    // No copies run on a GPU that has failed.
  }
}

void Transfer::check(CudaStream consumer) const {
  const CudaDevice::Scope scope(*device_);
  check_not_captured(consumer);
}

Transfer::Answer Transfer::ask(CudaStream consumer) {
  const CudaDevice::Scope scope(*device_);
  const bool captured = is_captured(consumer);
  if (captured) {
    asked_ = {};
  } else {
    if (!asked_.is_open) asked_ = {true, consumer, timed_stalls_.next(), nullptr};
    asked_.consumer = consumer;
    if (asked_.batches > 0) {
      if (asked_.event == nullptr) asked_.event = device_->take_event(EventKind::kTiming);
      record(asked_.event, consumer);
    }
  }
  drop_done();
  return {next_ - static_cast<Ticket>(running_.size()), captured};
}

Transfer::Ticket Transfer::submit(const Shipment& shipment, CudaStream consumer, Ticket first) {
  const CudaDevice::Scope scope(*device_);
  const Driver& driver = device_->driver();
  const CudaStream side = side_->handle();
  check_not_captured(consumer);
  if (first != kNone) make_visible(first, consumer);
  for (const PixelJob& job : shipment.pixels) load_kernel(*device_, *job.images.plan);
  std::vector<Staged> staged;
  Running running{nullptr, stage(shipment, staged)};
  running.ready = device_->take_event(EventKind::kOrdering);
  const int timed = timed_copies_.next();
  SharedEvent begin, end;
  if (timed > 0) {
    begin = device_->take_event(EventKind::kTiming);
    end = device_->take_event(EventKind::kTiming);
  }
  try {
    record(running.ready, consumer);
    MutexLock lock(side_->mutex());
    device_->check(driver.cuStreamWaitEvent(side, running.ready.get(), 0), "cuStreamWaitEvent");
    if (timed > 0) record(begin, side);
    enqueue(shipment, running.staged, staged);
    if (timed > 0) record(end, side);
    // The event is recorded again; the wait above keeps the first recording.
    record(running.ready, side);
    if (timed > 0) times_->add(StreamTimes::Kind::kCopies, begin, end, timed);
    running_.push_back(std::move(running));
  } catch (...) {
    driver.cuStreamSynchronize(side);
    throw;
  }
  return next_++;
}

bool Transfer::is_captured(CudaStream consumer) const {
  int status = 0;
  device_->check(device_->driver().cuStreamIsCapturing(consumer, &status), "cuStreamIsCapturing");
  return status != 0;
}

// While a graph is captured, work for the side stream would become part of it and not run.
void Transfer::check_not_captured(CudaStream consumer) const {
  if (!is_captured(consumer)) return;
  throw CudaError(
      "a CUDA graph is being captured from the current stream: take batches outside of the "
      "capture, and copy them into the tensors that the graph reads");
}

void Transfer::record(const SharedEvent& event, CudaStream stream) const {
  device_->check(device_->driver().cuEventRecord(event.get(), stream), "cuEventRecord");
}

// Copies small arrays, with the distances of their targets, and windows into one slot.
Lease Transfer::stage(const Shipment& shipment, std::vector<Staged>& staged) {
  DevicePointer first = 0;
  const std::size_t packed_bytes = span_bytes(shipment.packed, first);
  if (packed_bytes > 0) staged.push_back({first, 0, packed_bytes});
  std::size_t bytes = packed_bytes;
  for (const PixelJob& job : shipment.pixels) {
    if (!job.images.plan->random() || job.draws.empty()) continue;
    const std::size_t at = align_up(bytes, kFieldAlignment);
    const std::size_t windows = job.draws.size() * sizeof(ImageWindow);
    staged.push_back({job.raw + window_offset(job.images, job.draws.size()), at, windows});
    bytes = at + windows;
  }
  if (bytes == 0) return {};
  Lease lease = staging_->acquire(bytes, SlotPool::roomy(bytes));
  for (const HostToDevice& array : shipment.packed) {
    if (array.bytes > 0) std::memcpy(lease.data() + (array.to - first), array.from, array.bytes);
  }
  std::size_t part = packed_bytes > 0 ? 1 : 0;
  for (const PixelJob& job : shipment.pixels) {
    if (!job.images.plan->random() || job.draws.empty()) continue;
    std::byte* to = lease.data() + staged[part++].offset;
    for (const std::int64_t draw : job.draws) {
      const ImageWindow window = job.images.window(draw);
      std::memcpy(to, &window, sizeof(window));
      to += sizeof(window);
    }
  }
  return lease;
}

void Transfer::enqueue(const Shipment& shipment, const Lease& staging,
                       const std::vector<Staged>& staged) {
  for (const HostToDevice& array : shipment.copies) copy(array.to, array.from, array.bytes);
  for (const PixelJob& job : shipment.pixels) {
    const std::size_t images = job.draws.size();
    copy(job.raw, job.from, images * static_cast<std::size_t>(job.images.stored_bytes()));
  }
  for (const Staged& part : staged) copy(part.to, staging.data() + part.offset, part.bytes);
  stats_.packed += static_cast<std::int64_t>(shipment.packed.size());
  for (const PixelJob& job : shipment.pixels) {
    if (job.draws.empty()) continue;
    launch_pixels(*device_, side_->handle(), job.images, job.draws.size(), job.raw, job.out);
    ++stats_.kernels;
  }
}

void Transfer::copy(DevicePointer to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  device_->check(device_->driver().cuMemcpyHtoDAsync(to, from, bytes, side_->handle()),
                 "cuMemcpyHtoDAsync");
  times_->count_bytes(bytes);
  stats_.bytes += static_cast<std::int64_t>(bytes);
  ++stats_.copies;
}

void Transfer::deliver(Ticket ticket, CudaStream consumer) {
  const CudaDevice::Scope scope(*device_);
  check_not_captured(consumer);
  make_visible(ticket, consumer);
}

void Transfer::make_visible(Ticket ticket, CudaStream consumer) {
  const Running* const running = find(ticket);
  if (running != nullptr) {  // else the host has seen its end before it enqueued further work
    device_->check(device_->driver().cuStreamWaitEvent(consumer, running->ready.get(), 0),
                   "cuStreamWaitEvent");
  }
  if (asked_.is_open && asked_.consumer == consumer) end_stall(consumer);
}

void Transfer::end_stall(CudaStream consumer) {
  if (asked_.event != nullptr) {
    SharedEvent end = device_->take_event(EventKind::kTiming);
    record(end, consumer);
    times_->add(StreamTimes::Kind::kStall, asked_.event, std::move(end), asked_.batches);
  }
  asked_ = {};
}

bool Transfer::done(Ticket ticket) {
  if (find(ticket) == nullptr) return true;
  const CudaDevice::Scope scope(*device_);
  drop_done();
  return find(ticket) == nullptr;
}

bool Transfer::wait_until(Ticket ticket, Clock::time_point deadline) {
  if (done(ticket)) return true;
  if (std::exchange(waited_for_, ticket) != ticket) ++stats_.waits;
  while (Clock::now() < deadline) {
    std::this_thread::sleep_for(kQueryInterval);
    if (done(ticket)) return true;
  }
  return false;
}

void Transfer::drop_done() {
  while (!running_.empty()) {
    const CudaResult result = device_->driver().cuEventQuery(running_.front().ready.get());
    if (result == kCudaNotReady) return;
    device_->check(result, "cuEventQuery");
    running_.pop_front();
  }
}

// Returns nullptr if the batch is done.
const Transfer::Running* Transfer::find(Ticket ticket) const {
  if (ticket < 0 || ticket >= next_)
    throw std::out_of_range("there is no ticket " + std::to_string(ticket));
  const Ticket first = next_ - static_cast<Ticket>(running_.size());
  return ticket < first ? nullptr : &running_[static_cast<std::size_t>(ticket - first)];
}

}  // namespace fastload
