// Detects whether the data are cold (not in the page cache), and asks the kernel to read them
// ahead.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/index_map.h"
#include "batch/gather.h"
#include "storage/table.h"

namespace fastload {

// Asking the kernel to read ahead pays while the data are cold, and costs more than copying a small
// row when they are warm. So each thread probes the rows of its first batch; reading ahead is
// turned on when gathers cause major page faults, and off when probes find the coming rows in the
// page cache. Thread-safe; shared by the workers of an engine.
class Readahead {
 public:
  // The state of one thread. Not thread-safe.
  struct Monitor {
    bool has_probed = false;  // the rows of its first batch
    std::int64_t unchecked_bytes = 0;
    long major_faults = 0;
  };

  // A monitor for the calling thread.
  static Monitor monitor();

  explicit Readahead(const Table& table) : table_(table) {}

  // How to read rows now.
  Reading reading() const { return cold() ? Reading::kCold : Reading::kMapped; }
  bool cold() const { return cold_.load(std::memory_order_relaxed); }
  // As prepare(), for the bounds of ragged columns, before they are read.
  void prepare_bounds(const Monitor& monitor, Gatherer& gatherer, IndexSpan indices);
  // Called when a batch starts, some time before it is gathered. While the data are cold, and for
  // the first batch of each thread, probes rows and asks the kernel for the columns that miss some.
  void prepare(Monitor& monitor, Gatherer& gatherer, IndexSpan indices,
               std::span<const SpanTable> spans);
  // Called after the calling thread has gathered `bytes`: detects major page faults.
  void observe(Monitor& monitor, std::int64_t bytes);

 private:
  // Probes some rows of a column; asks the kernel for all of them if one is not in the page cache,
  // and returns whether it did.
  static bool request_if_missing(Gatherer& gatherer, const Column& column, IndexSpan indices,
                                 const Spans& spans);
  void set_cold();

  const Table& table_;
  // Hints: a late or lost update costs a little time, and never changes what is read.
  std::atomic<bool> cold_{false};
  std::atomic<int> warm_streak_{0};
};

}  // namespace fastload
