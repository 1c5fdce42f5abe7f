// CRC32C (Castagnoli, polynomial 0x1EDC6F41, as in iSCSI and RFC 3720), by the CPU's instruction
// where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fastload {

// CRC of the bytes that gave `crc` so far (0 for none) followed by `data`.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t crc = 0);

// The same without the instruction; the tests compare both.
std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t crc = 0);

// CRC of A followed by B, from the CRCs of both and the length of B.
std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b);

}  // namespace fastload
