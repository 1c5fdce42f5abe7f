// How long the streams of a GPU took for the batches of a loader.
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
  std::int64_t bytes;     // that crossed the bus
  std::int64_t copy_ns;   // of the side stream, for copies and kernels
  std::int64_t stall_ns;  // of the consumer's, which had nothing to do but wait for a batch
};

// NOTE [Times]. A span lies between two events. Nobody waits for them: they are asked when there
// are some, or when somebody wants to know; a span counts when both have passed. If a stream is so
// far behind that kMost spans are open, the next ones are not counted.
//
// Thread-safe. Outlives the transfers that count in it, whose last spans may be open.
class StreamTimes {
 public:
  enum Kind { kCopies, kStall };

  explicit StreamTimes(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  void count_bytes(std::size_t bytes) noexcept {
    bytes_.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  }
  // Both have been recorded in one stream. REQUIRES: inside a Scope. An error of the driver costs
  // the span; the driver tells it again to whoever calls it next. Throws std::bad_alloc.
  void add(Kind kind, SharedEvent begin, SharedEvent end);
  // All that has passed; of a device that fails what was known, in a forked child nothing.
  StreamFigures read() noexcept;

 private:
  struct Span {
    SharedEvent begin, end;
  };
  struct Spans {
    std::deque<Span> open;
    double passed_ms = 0;
  };
  static constexpr std::size_t kMost = 64;
  static constexpr std::size_t kSome = 8;

  void drop_passed(Spans& spans) noexcept FL_REQUIRES(mutex_);

  const std::uint64_t generation_ = fork_generation();
  const std::shared_ptr<CudaDevice> device_;
  std::atomic<std::int64_t> bytes_{0};
  Mutex mutex_;
  std::array<Spans, 2> spans_ FL_GUARDED_BY(mutex_);  // by kind
};

}  // namespace fastload
