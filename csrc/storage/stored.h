// Numbers that are stored smaller than they are delivered.
#pragma once

#include <cstdint>

namespace fastload {

// How the numbers of a column are stored: as they are delivered, or as integers that become int64.
enum class Stored { as_delivered, u8, i8, u16, i16, u32, i32 };

// Bytes of one number that becomes an int64. REQUIRES: not as_delivered.
constexpr std::int64_t stored_bytes(Stored stored) {
  if (stored == Stored::u8 || stored == Stored::i8) return 1;
  return stored == Stored::u16 || stored == Stored::i16 ? 2 : 4;
}

}  // namespace fastload
