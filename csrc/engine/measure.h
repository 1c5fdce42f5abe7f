// The limit that the engine is measured against.
#pragma once

#include <cstdint>
#include <span>

#include "storage/table.h"

namespace fastload {

// Bytes per second that `threads` threads write when they do nothing else: addresses and lengths
// are known, the destination is private and used again, no order, no hand-over. Numbers are
// converted, ragged samples are laid side by side. Batches of `batch` samples are taken from
// `indices` in turn for about `seconds`. The rows must be mapped and stay so: not guarded. Throws
// std::invalid_argument for rows that are read by pread, and for fewer indices than one batch.
double measure_gather(const Table& table, std::span<const std::int64_t> indices, std::int64_t batch,
                      int threads, double seconds);

}  // namespace fastload
