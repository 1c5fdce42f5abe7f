// Numbers that are stored smaller than they are delivered.
#pragma once

#include <cstdint>

namespace fastload {

// How the numbers of a column are stored: as they are delivered, or as integers that become int64.
enum class Stored { kAsDelivered, kU8, kI8, kU16, kI16, kU32, kI32 };

// Bytes of one number that becomes an int64. REQUIRES: not kAsDelivered.
constexpr std::int64_t stored_bytes(Stored stored) {
  if (stored == Stored::kU8 || stored == Stored::kI8) return 1;
  return stored == Stored::kU16 || stored == Stored::kI16 ? 2 : 4;
}

}  // namespace fastload
