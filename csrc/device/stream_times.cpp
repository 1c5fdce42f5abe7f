#include "device/stream_times.h"

#include <cmath>
#include <exception>
#include <utility>

namespace fastload {
namespace {

std::int64_t as_ns(double milliseconds) { return std::llround(milliseconds * 1e6); }

}  // namespace

void StreamTimes::add(Kind kind, SharedEvent begin, SharedEvent end) {
  MutexLock lock(mutex_);
  Spans& spans = spans_[kind];
  if (spans.open.size() >= kSome) drop_passed(spans);
  if (spans.open.size() < kMost) spans.open.push_back({std::move(begin), std::move(end)});
}

StreamFigures StreamTimes::read() noexcept {
  // The lock may have been copied while it was held.
  if (generation_ != fork_generation()) return {};
  MutexLock lock(mutex_);
  try {
    const CudaDevice::Scope scope(*device_);
    for (Spans& spans : spans_) drop_passed(spans);
  } catch (const std::exception&) {
    // Whoever loads a batch is told.
  }
  return {bytes_.load(std::memory_order_relaxed), as_ns(spans_[kCopies].passed_ms),
          as_ns(spans_[kStall].passed_ms)};
}

void StreamTimes::drop_passed(Spans& spans) noexcept {
  while (!spans.open.empty()) {
    float milliseconds = 0;
    const auto& [begin, end] = spans.open.front();
    const CudaResult result =
        device_->driver().cuEventElapsedTime(&milliseconds, begin.get(), end.get());
    if (result == kCudaNotReady) return;
    if (result == kCudaSuccess) spans.passed_ms += static_cast<double>(milliseconds);
    spans.open.pop_front();
  }
}

}  // namespace fastload
