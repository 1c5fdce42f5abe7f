#include "engine/readahead.h"

#include <sys/resource.h>

namespace fastload {
namespace {

// Below this a row is read by pread when cold: a fault would read and map many times as much.
constexpr std::int64_t kSmallRowBytes = 16 << 10;
// The count of major faults is read (0.3 us) after so many bytes.
constexpr std::int64_t kCheckBytes = 1 << 20;
constexpr int kWarmBatches = 8;

long major_faults() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_majflt;
}

}  // namespace

Readahead::Monitor Readahead::monitor() { return {false, 0, major_faults()}; }

Reading Readahead::reading(const Column& column) const {
  return cold() && column.row_bytes < kSmallRowBytes ? Reading::cold : Reading::mapped;
}

void Readahead::prepare(Monitor& monitor, Gatherer& gatherer,
                        std::span<const std::int64_t> indices) {
  const bool was_cold = cold();
  if (monitor.looked && !was_cold) return;
  monitor.looked = true;
  if (ask_for_missing(gatherer, indices)) {
    warm_streak_.store(0, std::memory_order_relaxed);
    cold_.store(true, std::memory_order_relaxed);
  } else if (was_cold && warm_streak_.fetch_add(1, std::memory_order_relaxed) + 1 >= kWarmBatches) {
    cold_.store(false, std::memory_order_relaxed);
    warm_streak_.store(0, std::memory_order_relaxed);
  }
}

void Readahead::observe(Monitor& monitor, std::int64_t bytes) {
  monitor.unchecked_bytes += bytes;
  if (monitor.unchecked_bytes < kCheckBytes) return;
  const long now = major_faults();
  if (now > monitor.major_faults) cold_.store(true, std::memory_order_relaxed);
  monitor.major_faults = now;
}

bool Readahead::ask_for_missing(Gatherer& gatherer, std::span<const std::int64_t> indices) const {
  bool missing = false;
  for (const Column& column : table_.columns()) {
    if (gatherer.resident(column, indices)) continue;
    missing = true;
    gatherer.will_need(column, indices);
  }
  return missing;
}

}  // namespace fastload
