// Kernels that copy and convert rows to contiguous memory.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "batch/convert.h"
#include "batch/pixel_kernels.h"
#include "batch/run.h"

namespace fastload {

// The kernels for one kind of CPU. The functions are thread-safe and own nothing.
struct CopyKernel {
  const char* name;
  // out = rows[0] rows[1] ... rows[count - 1], each of row_bytes bytes.
  // REQUIRES: out does not overlap the rows. Streaming stores are fenced before the call returns,
  // so that a mutex publishes them like ordinary stores.
  void (*copy_rows)(std::byte* out, const std::byte* const* rows, std::size_t count,
                    std::size_t row_bytes);
  // Copies runs of any lengths.
  CopyRuns copy_runs;
  // Convert runs of numbers to int64.
  ConvertKernels convert_runs;
  // The loops of deliver_images().
  PixelKernels pixels;

  CopyRuns runs_of(Stored stored) const {
    return stored == Stored::kAsDelivered ? copy_runs : convert_runs.of(stored);
  }
};

// The kernels that this CPU can run, the fastest first; "portable" is always the last. Thread-safe.
std::span<const CopyKernel> copy_kernels();

// The kernel in use: the fastest, unless set_copy_kernel() chose another. Thread-safe.
const CopyKernel& copy_kernel();
// Selects a kernel for all later copies, "auto" for the fastest; for tests and benchmarks. Throws
// std::invalid_argument if this CPU has no such kernel. Thread-safe.
void set_copy_kernel(std::string_view name);

}  // namespace fastload
