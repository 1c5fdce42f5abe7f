// Sizes of memory pages.
#pragma once

#include <cstddef>

namespace fastload {

// The unit in which memory is mapped. Kernels with larger pages (aarch64: up to 64 KiB) round up.
inline constexpr std::size_t kPageBytes = 4096;
// A transparent huge page, on x86-64 and on aarch64 with pages of 4 KiB.
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

}  // namespace fastload
