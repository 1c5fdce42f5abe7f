// CRC32C (Castagnoli, polynomial 0x1EDC6F41, as in iSCSI and RFC 3720), by the CPU's instruction
// where it has one. All functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fastload {

// Returns the CRC of the bytes whose CRC is `crc` (0: no bytes) followed by `data`.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc = 0);

// crc32c() without the instruction; the tests compare both.
std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t crc = 0);

// Returns the CRC of A followed by B, from the CRCs of both and the length of B.
std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b);

}  // namespace fastload
