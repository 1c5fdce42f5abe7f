// Measures the memory speed that an engine is compared with.
#pragma once

#include <cstdint>
#include <span>

#include "storage/table.h"

namespace fastload {

// Returns the bytes per second that `threads` threads write if they only copy: addresses and
// lengths are computed before, each thread reuses one private destination, and nothing is scheduled
// or delivered. Numbers are converted, ragged samples are packed. The threads copy the batches of
// `batch` samples of `indices`, over and over, for about `seconds`. Throws std::invalid_argument
// for rows that are read by pread, and for fewer indices than one batch. REQUIRES: files are not
// cut meanwhile, since copies are not guarded against SIGBUS.
double measure_gather(const Table& table, std::span<const std::int64_t> indices, std::int64_t batch,
                      int threads, double seconds);

}  // namespace fastload
