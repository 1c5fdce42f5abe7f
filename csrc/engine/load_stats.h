// What a loader has done: counted by its engines, read by anybody at any time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fastload {

// How long waits were, in buckets that are an eighth of an octave wide. Thread-safe; adding neither
// allocates nor locks.
class WaitHistogram {
 public:
  // `wait_ns` below 0 counts as 0.
  void add(std::int64_t wait_ns) noexcept;
  // The wait that the share `q` of all waits did not exceed, to within a sixteenth; 0 without any.
  std::int64_t quantile_ns(double q) const noexcept;

 private:
  static constexpr std::size_t kBuckets = 61 * 8;

  std::array<std::atomic<std::int64_t>, kBuckets> counts_{};
};

struct LoadFigures {
  std::int64_t batches;           // delivered
  std::int64_t samples;           // delivered
  std::int64_t bytes;             // delivered
  std::int64_t missing;           // samples left out of delivered batches
  std::int64_t consumer_wait_ns;  // in next(), until its batch was ready
  std::int64_t wait_p50_ns;       // of the same, batch by batch
  std::int64_t wait_p99_ns;
  std::int64_t worker_wait_ns;  // all workers, until there was something to do
  std::int64_t cold_batches;    // delivered while the engine read ahead, since the data were cold
  std::int64_t ready;           // batches waiting to be taken, of all engines that live
};

// Thread-safe: each figure is a counter of its own, so that figures read together may be a batch
// apart. Several engines, one after the other or at once, may count in one object.
class LoadStats {
 public:
  void count_batch(std::size_t samples, std::size_t bytes, std::size_t missing, bool cold) noexcept;
  // Samples of a counted batch that its consumer left out afterwards.
  void count_missing(std::int64_t samples) noexcept;
  // A part of the time that somebody waits for a batch; and all of it, when there is one.
  void add_wait(std::int64_t wait_ns) noexcept;
  void count_wait(std::int64_t wait_ns) noexcept { waits_.add(wait_ns); }
  void add_worker_wait(std::int64_t wait_ns) noexcept;
  void add_ready(std::int64_t change) noexcept;
  LoadFigures read() const noexcept;

 private:
  using Counter = std::atomic<std::int64_t>;

  Counter batches_{0}, samples_{0}, bytes_{0}, missing_{0}, cold_batches_{0};
  Counter consumer_wait_ns_{0}, worker_wait_ns_{0}, ready_{0};
  WaitHistogram waits_;
};

}  // namespace fastload
