// What kernels copy or convert besides rows of one size.
#pragma once

#include <cstddef>
#include <span>

namespace fastload {

// Bytes that lie side by side, and where they go.
struct Run {
  const std::byte* from;
  std::byte* out;
  std::size_t bytes;  // at `from`
};

using CopyRuns = void (*)(std::span<const Run> runs);

}  // namespace fastload
