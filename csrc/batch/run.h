// Runs: what kernels copy or convert if sizes differ.
#pragma once

#include <cstddef>
#include <span>

namespace fastload {

// Contiguous bytes, and where they go.
struct Run {
  const std::byte* from;
  std::byte* out;
  std::size_t bytes;  // at `from`
};

using CopyRuns = void (*)(std::span<const Run> runs);

}  // namespace fastload
