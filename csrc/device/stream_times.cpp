#include "device/stream_times.h"

#include <cmath>
#include <exception>
#include <utility>

namespace fastload {
namespace {

std::int64_t as_ns(double milliseconds) { return std::llround(milliseconds * 1e6); }

}  // namespace

void StreamTimes::add(Kind kind, SharedEvent begin, SharedEvent end, int batches) {
  MutexLock lock(mutex_);
  Spans& spans = spans_of(kind);
  if (spans.open.size() >= kQuerySpans) drop_passed(spans);
  if (spans.open.size() < kMaxSpans) {
    spans.open.push_back({std::move(begin), std::move(end), batches});
  }
}

StreamFigures StreamTimes::read() noexcept {
  // fork() may have copied the mutex while it was locked.
  if (generation_ != fork_generation()) return {};
  MutexLock lock(mutex_);
  try {
    const CudaDevice::Scope scope(*device_);
    for (Spans& spans : spans_) drop_passed(spans);
  } catch (const std::exception&) {
    // The next call that loads a batch throws it.
  }
  return {bytes_.load(std::memory_order_relaxed), as_ns(spans_of(Kind::kCopies).passed_ms),
          as_ns(spans_of(Kind::kStall).passed_ms)};
}

void StreamTimes::drop_passed(Spans& spans) noexcept {
  while (!spans.open.empty()) {
    float milliseconds = 0;
    const auto& [begin, end, batches] = spans.open.front();
    const CudaResult result =
        device_->driver().cuEventElapsedTime(&milliseconds, begin.get(), end.get());
    if (result == kCudaNotReady) return;
    if (result == kCudaSuccess) spans.passed_ms += static_cast<double>(milliseconds) * batches;
    spans.open.pop_front();
  }
}

}  // namespace fastload
