#include "engine/readahead.h"

#include <sys/resource.h>

namespace fastload {
namespace {

// Bytes between two readings of the number of major faults, which cost 0.3 us each.
constexpr std::int64_t kCheckBytes = 1 << 20;
// Batches that probes must find in the page cache, one after another, to turn reading ahead off.
// Balances probes of warm data against page faults when cold data follow a warm stretch.
constexpr int kWarmBatches = 8;

long major_faults() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_majflt;
}

}  // namespace

Readahead::Monitor Readahead::monitor() { return {false, 0, major_faults()}; }

void Readahead::prepare_bounds(const Monitor& monitor, Gatherer& gatherer, IndexSpan indices) {
  if (monitor.has_probed && !cold()) return;
  for (const Column& column : table_.columns()) {
    if (column.bounds == nullptr) continue;
    if (request_if_missing(gatherer, column.bounds->column, indices, {})) set_cold();
  }
}

void Readahead::prepare(Monitor& monitor, Gatherer& gatherer, IndexSpan indices,
                        std::span<const SpanTable> spans) {
  const bool was_cold = cold();
  if (monitor.has_probed && !was_cold) return;
  monitor.has_probed = true;
  bool missing = false;
  const auto columns = table_.columns();
  for (std::size_t c = 0; c < columns.size(); ++c) {
    missing |= request_if_missing(gatherer, columns[c], indices, spans[c].spans());
  }
  if (missing) {
    set_cold();
  } else if (was_cold && warm_streak_.fetch_add(1, std::memory_order_relaxed) + 1 >= kWarmBatches) {
    cold_.store(false, std::memory_order_relaxed);
    warm_streak_.store(0, std::memory_order_relaxed);
  }
}

void Readahead::set_cold() {
  warm_streak_.store(0, std::memory_order_relaxed);
  cold_.store(true, std::memory_order_relaxed);
}

void Readahead::observe(Monitor& monitor, std::int64_t bytes) {
  monitor.unchecked_bytes += bytes;
  if (monitor.unchecked_bytes < kCheckBytes) return;
  monitor.unchecked_bytes = 0;
  const long now = major_faults();
  if (now > monitor.major_faults) cold_.store(true, std::memory_order_relaxed);
  monitor.major_faults = now;
}

bool Readahead::request_if_missing(Gatherer& gatherer, const Column& column, IndexSpan indices,
                                   const Spans& spans) {
  const ColumnSamples samples{column, indices, spans};
  if (gatherer.resolver().is_resident(samples)) return false;
  gatherer.resolver().will_need(samples);
  return true;
}

}  // namespace fastload
