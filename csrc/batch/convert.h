// Integers of 1, 2 and 4 bytes -> int64, on the way from a file into a batch.
#pragma once

#include "batch/run.h"
#include "storage/stored.h"

namespace fastload {

// Convert runs of numbers, stored at any address, to int64 at any address: one function per kind of
// number. They are thread-safe and fence what they stream, like the copy kernels they belong to.
struct ConvertKernels {
  CopyRuns u8, i8, u16, i16, u32, i32;

  // REQUIRES: not kAsDelivered.
  CopyRuns of(Stored stored) const;
};

ConvertKernels convert_kernels_portable();
// REQUIRES: the CPU has AVX2, or AVX-512F. The portable ones where there is no such CPU.
ConvertKernels convert_kernels_avx2();
ConvertKernels convert_kernels_avx512();

}  // namespace fastload
