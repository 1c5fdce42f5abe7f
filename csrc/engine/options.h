// The options of an engine, and how they make each column a delivery.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "batch/layout.h"
#include "engine/load_stats.h"
#include "storage/table.h"

namespace fastload {

// How a batch is handled that has samples whose bytes differ from their checksums.
enum class OnError {
  kRaise,  // its error is thrown at its turn
  kSkip,   // it is delivered without these samples
};

struct EngineOptions {
  int worker_count = 0;    // 0: the thread that calls next() does the work
  std::int64_t depth = 2;  // batches being filled or ready; delivered ones do not count
  OnError on_error = OnError::kRaise;
  std::vector<std::optional<PadTo>> paddings = {};        // per column, for ragged ones; or empty
  std::vector<std::optional<ImageDelivery>> images = {};  // per column, for the others; or empty
  std::shared_ptr<LoadStats> stats = nullptr;             // null: the engine makes its own
  bool counts_waits = true;  // false: a stage between engine and consumer counts them
  bool wants_draws = false;  // fill BatchTask::draws even if no image needs them
};

// How each column of `table` is delivered. Throws std::invalid_argument for a negative
// worker_count, a depth outside [1, 2^31], and paddings or images that do not fit the table.
std::vector<Delivery> deliveries_of(const Table& table, const EngineOptions& options);

}  // namespace fastload
