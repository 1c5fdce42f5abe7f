// Whether the data are cold, and what to do about it.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/index_map.h"
#include "batch/gather.h"
#include "storage/table.h"

namespace fastload {

// Asking the kernel to read ahead pays while the data are not in the page cache and costs more than
// a small row when they are. So the engine starts with a look at the first batch, turns reading
// ahead on when gathers cause major page faults, and off when probes find the coming rows resident.
// Thread-safe; shared by the workers of an engine.
class Readahead {
 public:
  // What a worker knows between its batches. One per thread.
  struct Monitor {
    bool looked = false;  // at the rows of a first batch
    std::int64_t unchecked_bytes = 0;
    long major_faults = 0;
  };

  // A monitor of the calling thread.
  static Monitor monitor();

  explicit Readahead(const Table& table) : table_(table) {}

  // How to read rows now.
  Reading reading() const { return cold() ? Reading::cold : Reading::mapped; }
  bool cold() const { return cold_.load(std::memory_order_relaxed); }
  // The same as prepare(), just before the bounds of ragged columns are read.
  void prepare_bounds(const Monitor& monitor, Gatherer& gatherer, IndexSpan indices);
  // Called when a batch is begun, some time before it is gathered. While the data are cold, and for
  // the first batch of each thread, looks which rows are missing and asks for them.
  void prepare(Monitor& monitor, Gatherer& gatherer, IndexSpan indices,
               std::span<const SpanTable> spans);
  // Called after `bytes` were gathered by the calling thread.
  void observe(Monitor& monitor, std::int64_t bytes);

 private:
  // Starts reading a column of which a few rows, looked up, are not resident; whether it was so.
  static bool ask_if_missing(Gatherer& gatherer, const Column& column, IndexSpan indices,
                             const Spans& spans);
  void set_cold();

  const Table& table_;
  // Hints, not protocol: a late or lost update costs a little time and never correctness.
  std::atomic<bool> cold_{false};
  std::atomic<int> warm_streak_{0};
};

}  // namespace fastload
