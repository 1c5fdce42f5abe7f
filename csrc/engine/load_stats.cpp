#include "engine/load_stats.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace fastload {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;  // counters publish no other data

// One bucket per nanosecond below 8 ns; above, eight per octave.
std::size_t bucket_of(std::uint64_t wait_ns) {
  if (wait_ns < 8) return static_cast<std::size_t>(wait_ns);
  const auto shift = static_cast<std::size_t>(std::bit_width(wait_ns)) - 4;
  return (shift + 1) * 8 + static_cast<std::size_t>(wait_ns >> shift) - 8;
}

std::int64_t middle_of(std::size_t bucket) {
  if (bucket < 8) return static_cast<std::int64_t>(bucket);
  const std::size_t shift = bucket / 8 - 1;
  const std::uint64_t width = std::uint64_t{1} << shift;
  return static_cast<std::int64_t>((8 + bucket % 8) * width + width / 2);
}

}  // namespace

void WaitHistogram::add(std::int64_t wait_ns) noexcept {
  const auto wait = static_cast<std::uint64_t>(std::max<std::int64_t>(0, wait_ns));
  counts_[bucket_of(wait)].fetch_add(1, kRelaxed);
}

std::int64_t WaitHistogram::quantile_ns(double q) const noexcept {
  std::array<std::int64_t, kBuckets> counts;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) total += counts[i] = counts_[i].load(kRelaxed);
  const auto wanted = static_cast<std::int64_t>(std::ceil(q * static_cast<double>(total)));
  std::int64_t seen = 0;
  for (std::size_t i = 0; i < kBuckets && total > 0; ++i) {
    seen += counts[i];
    if (seen >= std::max<std::int64_t>(1, wanted)) return middle_of(i);
  }
  return 0;
}

void LoadStats::count_batch(std::size_t samples, std::size_t bytes, std::size_t missing,
                            bool cold) noexcept {
  batches_.fetch_add(1, kRelaxed);
  samples_.fetch_add(static_cast<std::int64_t>(samples), kRelaxed);
  bytes_.fetch_add(static_cast<std::int64_t>(bytes), kRelaxed);
  if (missing > 0) missing_.fetch_add(static_cast<std::int64_t>(missing), kRelaxed);
  if (cold) cold_batches_.fetch_add(1, kRelaxed);
}

void LoadStats::count_missing(std::int64_t samples) noexcept {
  samples_.fetch_sub(samples, kRelaxed);
  missing_.fetch_add(samples, kRelaxed);
}

void LoadStats::add_wait(std::int64_t wait_ns) noexcept {
  consumer_wait_ns_.fetch_add(wait_ns, kRelaxed);
}

void LoadStats::add_worker_wait(std::int64_t wait_ns) noexcept {
  worker_wait_ns_.fetch_add(wait_ns, kRelaxed);
}

void LoadStats::add_ready(std::int64_t change) noexcept { ready_.fetch_add(change, kRelaxed); }

LoadFigures LoadStats::read() const noexcept {
  return {batches_.load(kRelaxed),  samples_.load(kRelaxed),          bytes_.load(kRelaxed),
          missing_.load(kRelaxed),  consumer_wait_ns_.load(kRelaxed), waits_.quantile_ns(0.5),
          waits_.quantile_ns(0.99), worker_wait_ns_.load(kRelaxed),   cold_batches_.load(kRelaxed),
          ready_.load(kRelaxed)};
}

}  // namespace fastload
