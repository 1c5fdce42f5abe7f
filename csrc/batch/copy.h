// Copying and converting rows side by side, at the speed of the memory bus.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "batch/convert.h"
#include "batch/pixel_kernels.h"
#include "batch/run.h"

namespace fastload {

// One way to copy, for one kind of CPU. The functions are thread-safe and own nothing.
struct CopyKernel {
  const char* name;
  // out = rows[0] rows[1] ... rows[count - 1], each of row_bytes bytes.
  // REQUIRES: out does not overlap the rows. What was written is visible to other threads only
  // after the usual release (a mutex): streaming stores are fenced before the call returns.
  void (*copy_rows)(std::byte* out, const std::byte* const* rows, std::size_t count,
                    std::size_t row_bytes);
  // The same for runs of any lengths.
  CopyRuns copy_runs;
  // The same for numbers that become int64.
  ConvertKernels convert_runs;
  // What deliver_images() is made of.
  PixelKernels pixels;

  CopyRuns runs_of(Stored stored) const {
    return stored == Stored::kAsDelivered ? copy_runs : convert_runs.of(stored);
  }
};

// What this CPU can run, the fastest first; "portable" is always the last.
std::span<const CopyKernel> copy_kernels();

// The kernel in use: the fastest, unless set_copy_kernel() chose another. Thread-safe.
const CopyKernel& copy_kernel();
// For tests and benchmarks: use the kernel of that name from now on, "auto" for the fastest. Throws
// std::invalid_argument if this CPU has no such kernel.
void set_copy_kernel(std::string_view name);

}  // namespace fastload
