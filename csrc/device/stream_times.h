// Measures how long the streams of a GPU took for the batches of a loader.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "base/fork.h"
#include "base/mutex.h"
#include "device/cuda_device.h"

namespace fastload {

struct StreamFigures {
  std::int64_t bytes;     // copied to the GPU
  std::int64_t copy_ns;   // of the side stream, for copies and kernels
  std::int64_t stall_ns;  // of the consumer's stream, which had no work until a batch arrived
};

// NOTE [Times]. A span is the time between two events. No thread waits for events: they are queried
// when kQuerySpans spans are open, and by read(); a span counts when both of its events have
// passed. While a stream is so far behind that kMaxSpans spans are open, further ones are not
// counted.
//
// Thread-safe. Shared with the transfers that add to it, and may outlive them with open spans.
class StreamTimes {
 public:
  enum class Kind { kCopies, kStall };

  explicit StreamTimes(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  void count_bytes(std::size_t bytes) noexcept {
    bytes_.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  }
  // Adds the span between two events that were recorded in one stream. If the driver fails, the
  // span is dropped; the driver reports the error again at its next call. REQUIRES: inside a Scope.
  // Throws std::bad_alloc.
  void add(Kind kind, SharedEvent begin, SharedEvent end);
  // The sums of all spans that have passed; if the device has failed, those known before; zeros in
  // a forked child.
  StreamFigures read() noexcept;

 private:
  struct Span {
    SharedEvent begin, end;
  };
  struct Spans {
    std::deque<Span> open;
    double passed_ms = 0;
  };
  // Open spans above which add() queries the driver: a query per batch would cost a driver call.
  static constexpr std::size_t kQuerySpans = 8;
  // Bounds the events that a stream far behind holds; a loader has at most four batches in copying.
  static constexpr std::size_t kMaxSpans = 64;

  Spans& spans_of(Kind kind) FL_REQUIRES(mutex_) { return spans_[static_cast<std::size_t>(kind)]; }
  // Counts and drops the spans in front that have passed.
  void drop_passed(Spans& spans) noexcept FL_REQUIRES(mutex_);

  const std::uint64_t generation_ = fork_generation();
  const std::shared_ptr<CudaDevice> device_;
  std::atomic<std::int64_t> bytes_{0};
  Mutex mutex_;
  std::array<Spans, 2> spans_ FL_GUARDED_BY(mutex_);  // by Kind
};

}  // namespace fastload
