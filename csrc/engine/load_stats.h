// Counts what a loader has done: its engines add, any thread reads at any time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fastload {

// A histogram of wait times, with eight buckets per octave. Thread-safe; adding neither allocates
// nor locks.
class WaitHistogram {
 public:
  // Adds one wait. `wait_ns` below 0 counts as 0.
  void add(std::int64_t wait_ns) noexcept;
  // The q-quantile of all waits, with a relative error of at most 1/16; 0 if there are none.
  std::int64_t quantile_ns(double q) const noexcept;

 private:
  static constexpr std::size_t kBuckets = 61 * 8;  // 64 bits, whose first four share 8 + 8 buckets

  std::array<std::atomic<std::int64_t>, kBuckets> counts_{};
};

struct LoadFigures {
  std::int64_t batches;           // delivered
  std::int64_t samples;           // delivered
  std::int64_t bytes;             // delivered
  std::int64_t missing;           // samples left out of delivered batches
  std::int64_t consumer_wait_ns;  // in next(), until its batch was ready
  std::int64_t wait_p50_ns;       // quantiles of the same per batch
  std::int64_t wait_p99_ns;
  std::int64_t worker_wait_ns;  // of all workers, without work
  std::int64_t cold_batches;    // delivered while the engine read ahead, since the data were cold
  std::int64_t ready;           // batches that wait for a consumer, of all engines alive
};

// Thread-safe. Each figure is a separate atomic counter, so figures that are read together may
// differ by a batch. Several engines may count in one object, also at the same time.
class LoadStats {
 public:
  void count_batch(std::size_t samples, std::size_t bytes, std::size_t missing, bool cold) noexcept;
  // Moves samples of a counted batch, which its consumer left out, from `samples` to `missing`.
  void count_missing(std::int64_t samples) noexcept;
  // add_wait() adds a part of the wait for a batch to the sum; count_wait() adds the whole wait to
  // the histogram, once the batch has come.
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
