// Integers that are stored in fewer bytes than they are delivered in.
#pragma once

#include <cstdint>

namespace fastload {

// How the numbers of a column are stored: as delivered, or as integers that are converted to int64.
enum class Stored { kAsDelivered, kU8, kI8, kU16, kI16, kU32, kI32 };

// Bytes of a stored number that is converted to int64. REQUIRES: not kAsDelivered.
constexpr std::int64_t stored_bytes(Stored stored) {
  if (stored == Stored::kU8 || stored == Stored::kI8) return 1;
  return stored == Stored::kU16 || stored == Stored::kI16 ? 2 : 4;
}

}  // namespace fastload
