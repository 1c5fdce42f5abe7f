// The functions of the driver: streams and events.
#include "device/driver.h"
#include "entry.h"
#include "fake_cuda.h"

using namespace fake_cuda;
using fastload::CudaEvent;
using fastload::CudaStream;

extern "C" {

FAKE_CUDA_API CudaResult cuStreamCreateWithPriority(CudaStream* stream, unsigned flags, int) {
  const Entry entry("cuStreamCreateWithPriority", kContext | kUnsafe);
  if (entry.result() != kSuccess) return entry.result();
  if (flags != 1) return entry.books().misused("a stream that waits for stream 0", kInvalidValue);
  *stream = reinterpret_cast<CudaStream>(entry.books().new_stream(entry.context()));
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuStreamSynchronize(CudaStream stream) {
  Stream* queue = nullptr;
  {
    Entry entry("cuStreamSynchronize", kContext | kUnsafe);
    if (entry.result() != kSuccess) return entry.result();
    queue = entry.open(stream);
    if (entry.result() != kSuccess) return entry.result();
  }
  return drain(*queue);
}

FAKE_CUDA_API CudaResult cuStreamWaitEvent(CudaStream stream, CudaEvent handle, unsigned flags) {
  Stream* queue = nullptr;
  std::unique_ptr<Operation> wait;
  {
    Entry entry("cuStreamWaitEvent", kContext);
    if (entry.result() != kSuccess) return entry.result();
    if (flags != 0) return kInvalidValue;
    const Event* const event = entry.event(handle);
    if (event == nullptr) return entry.result();
    queue = entry.books().find(stream, &entry.context());
    if (queue == nullptr) return entry.books().misused("an unknown stream", kInvalidHandle);
    if (queue->capture != 0 || event->captured) {
      queue->capture = queue->capture == 0 ? 0 : 2;
      return entry.books().misused("a wait that crosses a capture's border", kCaptureIsolation);
    }
    entry.books().slow_waits += event->is_timed;
    if (event->latest == nullptr) return kSuccess;
    wait = std::make_unique<Operation>();
    wait->awaited = event->latest;
  }
  push(*queue, std::move(wait));
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuStreamIsCapturing(CudaStream stream, int* status) {
  const Entry entry("cuStreamIsCapturing", kContext);
  if (entry.result() != kSuccess) return entry.result();
  const Stream* const queue = entry.books().find(stream, &entry.context());
  if (queue == nullptr) return entry.books().misused("an unknown stream", kInvalidHandle);
  *status = queue->capture;
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuEventCreate(CudaEvent* event, unsigned flags) {
  const Entry entry("cuEventCreate", kContext);
  if (entry.result() != kSuccess) return entry.result();
  constexpr unsigned kDisableTiming = 2;
  auto* const made = new Event();
  made->is_timed = (flags & kDisableTiming) == 0;
  entry.books().events.insert(made);
  *event = reinterpret_cast<CudaEvent>(made);
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuEventDestroy_v2(CudaEvent handle) {
  Entry entry("cuEventDestroy", kContext);
  if (entry.result() != kSuccess) return entry.result();
  Event* const event = entry.event(handle);
  if (event == nullptr) return entry.result();
  entry.books().events.erase(event);
  delete event;
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuEventRecord(CudaEvent handle, CudaStream stream) {
  Stream* queue = nullptr;
  std::unique_ptr<Operation> record;
  {
    Entry entry("cuEventRecord", kContext);
    if (entry.result() != kSuccess) return entry.result();
    Event* const event = entry.event(handle);
    if (event == nullptr) return entry.result();
    queue = entry.books().find(stream, &entry.context());
    event->captured = queue != nullptr && queue->capture != 0;
    if (event->captured) entry.books().misused("an event is recorded in a capture", kSuccess);
    if (event->captured) return kSuccess;
    queue = entry.open(stream);
    if (entry.result() != kSuccess) return entry.result();
    record = std::make_unique<Operation>();
    event->latest = record->completed = std::make_shared<Completion>();
  }
  push(*queue, std::move(record));
  return kSuccess;
}

FAKE_CUDA_API CudaResult cuEventQuery(CudaEvent handle) {
  const Completion* done = nullptr;
  {
    Entry entry("cuEventQuery", kContext | kUnsafe);
    if (entry.result() != kSuccess) return entry.result();
    const Event* const event = entry.event(handle);
    if (event == nullptr) return entry.result();
    if (event->captured) return kCapturedEvent;
    entry.books().slow_waits += event->is_timed;
    if (event->latest == nullptr) return kSuccess;
    if (!event->latest->done) return kNotReady;
    done = event->latest.get();
  }
  acquire(const_cast<Completion*>(done));
  return kSuccess;
}

// It orders nothing: whoever hears of it has only seen a number.
FAKE_CUDA_API CudaResult cuEventElapsedTime(float* milliseconds, CudaEvent first, CudaEvent last) {
  Entry entry("cuEventElapsedTime", kContext | kUnsafe);
  if (entry.result() != kSuccess) return entry.result();
  const Event* const begin = entry.event(first);
  const Event* const end = entry.event(last);
  if (begin == nullptr || end == nullptr) return entry.result();
  if (begin->captured || end->captured) return kCapturedEvent;
  if (!begin->is_timed || !end->is_timed || !begin->latest || !end->latest) return kInvalidHandle;
  if (!begin->latest->done || !end->latest->done) return kNotReady;
  const std::int64_t ns = end->latest->time_ns - begin->latest->time_ns;
  *milliseconds = static_cast<float>(static_cast<double>(ns) / 1e6);
  return kSuccess;
}
}
