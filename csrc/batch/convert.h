// Kernels that convert integers of 1, 2 and 4 bytes to int64.
#pragma once

#include "batch/run.h"
#include "storage/stored.h"

namespace fastload {

// One function per dtype, which converts runs of numbers at any address to int64 at any address.
// They are thread-safe and fence their streaming stores, like copy kernels.
struct ConvertKernels {
  CopyRuns u8, i8, u16, i16, u32, i32;

  // REQUIRES: not kAsDelivered.
  CopyRuns of(Stored stored) const;
};

ConvertKernels convert_kernels_portable();
// REQUIRES: the CPU has AVX2, or AVX-512F. On other architectures they are
// the portable ones.
ConvertKernels convert_kernels_avx2();
ConvertKernels convert_kernels_avx512();

}  // namespace fastload
