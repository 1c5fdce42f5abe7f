// Estimates how long the streams of a GPU took for the batches of a loader, from some of them.
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
  std::int64_t copy_ns;   // of side streams, for copies and kernels; estimated
  std::int64_t stall_ns;  // of the consumer's streams, idle until a batch arrived; estimated
};

// NOTE [Sampled times]. Timing events are slow, so an iterator times only some batches: the first
// kAllTimed, because loaders start slowly, then one in kTimedEvery, whose time also counts for the
// batches before it that are not timed. 13 shares no factor with the usual numbers of batches per
// optimizer step, so that each batch of an accumulation is timed in turn.
class TimedBatches {
 public:
  // Counts a batch. Returns the number of batches for which its time counts; 0: it is not timed.
  int next() {
    if (count_ < kAllTimed) {
      ++count_;
      return 1;
    }
    untimed_ = (untimed_ + 1) % kTimedEvery;
    return untimed_ == 0 ? kTimedEvery : 0;
  }

  static constexpr int kAllTimed = 16;
  static constexpr int kTimedEvery = 13;

 private:
  int count_ = 0;    // up to kAllTimed
  int untimed_ = 0;  // batches since the last timed one
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
  // Adds the span between two timing events that were recorded in one stream, `batches` times. If
  // the driver fails, the span is dropped; the driver reports the error again at its next call.
  // REQUIRES: inside a Scope. Throws std::bad_alloc.
  void add(Kind kind, SharedEvent begin, SharedEvent end, int batches);
  // The sums of all spans that have passed; if the device has failed, those known before; zeros in
  // a forked child.
  StreamFigures read() noexcept;

 private:
  struct Span {
    SharedEvent begin, end;
    int batches;
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
