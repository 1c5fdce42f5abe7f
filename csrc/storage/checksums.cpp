#include "storage/checksums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <numeric>
#include <stdexcept>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "storage/guard.h"

namespace fastload {
namespace {

// Bytes of a block that are read at once. Balances system calls against the second cache, in which
// they lie while their CRC is computed.
constexpr std::size_t kReadBytes = 256 << 10;
// Samples that are located at once: their arrays, 6 KiB, lie on the stack.
constexpr std::int64_t kLookups = 256;

std::uint32_t little_endian(const std::array<std::byte, 4>& bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= std::to_integer<std::uint32_t>(bytes[i]) << (8 * i);
  return value;
}

}  // namespace

Checksums::Checksums(const Table& table) : table_(table) {
  std::int64_t count = 0;
  for (std::size_t number = 0; number < table.source_count(); ++number) {
    const Source& source = table.source(static_cast<std::int32_t>(number));
    firsts_.push_back(count);
    if (source.blocks.block_bytes == 0) {
      places_.emplace_back();
      continue;
    }
    const Place place = place_of(source, count);
    places_.push_back(place);
    if (place.end > place.begin) count += ((place.end - 1 - place.begin) >> place.shift) + 1;
  }
  firsts_.push_back(count);
  const auto words = static_cast<std::size_t>(count / 64 + 1);
  good_ = std::make_unique<std::atomic<std::uint64_t>[]>(words);
  for (std::size_t i = 0; i < words; ++i) good_[i].store(~std::uint64_t{0});
  require_all();
  std::int64_t left = 0;
  for (std::size_t i = 0; i < words; ++i) left += std::popcount(~good_[i].load());
  left_.store(left);
}

Checksums::Place Checksums::place_of(const Source& source, std::int64_t first) const {
  const BlockExtent& blocks = source.blocks;
  if (source.file < 0) throw std::invalid_argument("memory has no checksums");
  const auto block_bytes = static_cast<std::uint64_t>(blocks.block_bytes);
  if (blocks.block_bytes < 0 || !std::has_single_bit(block_bytes)) {
    throw std::invalid_argument("block_bytes must be a power of two, got " +
                                std::to_string(blocks.block_bytes));
  }
  const std::int64_t size = table_.files().size_bytes(source.file);
  const int shift = std::countr_zero(block_bytes);
  const bool inside = 0 <= blocks.begin && blocks.begin <= blocks.end && blocks.end <= size;
  const std::int64_t count =
      inside && blocks.begin < blocks.end ? ((blocks.end - 1 - blocks.begin) >> shift) + 1 : 0;
  if (!inside || blocks.crcs < 0 || checked_add(blocks.crcs, checked_mul(count, 4)) > size) {
    throw FormatError("'" + table_.files().path(source.file) + "': the blocks at bytes " +
                      std::to_string(blocks.begin) + " to " + std::to_string(blocks.end) +
                      " and their checksums at byte " + std::to_string(blocks.crcs) +
                      " do not lie inside the file, which has " + std::to_string(size));
  }
  return {blocks.begin, blocks.end, blocks.crcs, first, shift};
}

void Checksums::require_all() {
  for (const Column& column : table_.columns()) {
    const ColumnGroup& group = table_.group_of(column);
    require_rows(column.bounds == nullptr ? column : column.bounds->column, group);
    if (column.bounds == nullptr) continue;
    for (std::size_t shard = 0; shard < group.shard_count(); ++shard) {
      if (group.shard_rows(shard) == 0) continue;
      const std::int64_t begin = column.offsets[shard];
      require(column.sources[shard], begin,
              begin + column.bounds->totals[shard] * column.row_bytes);
    }
  }
}

void Checksums::require_rows(const Column& column, const ColumnGroup& group) {
  const auto reach = [&](std::size_t shard, std::int64_t row, std::int64_t rows) {
    const std::int64_t begin = column.offsets[shard] + row * column.row_stride;
    require(column.sources[shard], begin,
            begin + (rows - 1) * column.row_stride + column.row_bytes);
  };
  if (!group.mapped()) {
    for (std::size_t shard = 0; shard < group.shard_count(); ++shard) {
      if (group.shard_rows(shard) > 0) reach(shard, 0, group.shard_rows(shard));
    }
    return;
  }
  // Only blocks that the map leads to: with others, all_good() would stay false for a subset.
  std::array<std::int64_t, kLookups> indices = {};
  std::array<RowPlace, kLookups> places = {};
  for (std::int64_t first = 0; first < group.samples(); first += kLookups) {
    const auto count = std::min<std::int64_t>(kLookups, group.samples() - first);
    std::iota(indices.begin(), indices.begin() + count, first);
    group.locate({indices.data(), static_cast<std::size_t>(count)},
                 {places.data(), static_cast<std::size_t>(count)});
    for (std::int64_t i = 0; i < count; ++i) {
      const RowPlace& place = places[static_cast<std::size_t>(i)];
      reach(static_cast<std::size_t>(place.shard), place.row, 1);
    }
  }
}

// Clears the bits of the blocks of [begin, end): they are to be checked.
void Checksums::require(std::int32_t source, std::int64_t begin, std::int64_t end) {
  const Place& place = places_[static_cast<std::size_t>(source)];
  begin = std::max(begin, place.begin);
  end = std::min(end, place.end);
  if (begin >= end) return;
  std::int64_t block = place.first + ((begin - place.begin) >> place.shift);
  const std::int64_t stop = place.first + ((end - 1 - place.begin) >> place.shift) + 1;
  while (block < stop) {
    const std::int64_t next = std::min(stop, (block / 64 + 1) * 64);
    const std::int64_t count = next - block;
    const std::uint64_t ones = count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
    std::atomic<std::uint64_t>& word = good_[static_cast<std::size_t>(block / 64)];
    // No other thread has this object yet.
    const std::uint64_t bits = word.load(std::memory_order_relaxed);
    word.store(bits & ~(ones << (block % 64)), std::memory_order_relaxed);
    block = next;
  }
}

Checksums::Block Checksums::locate(std::int64_t block) const {
  const auto next = std::upper_bound(firsts_.begin(), firsts_.end(), block);
  const auto source = static_cast<std::size_t>(next - firsts_.begin() - 1);
  const Place& place = places_[source];
  const std::int64_t number = block - place.first;
  const std::int64_t begin = place.begin + (number << place.shift);
  const std::int64_t end = std::min(place.end, begin + (std::int64_t{1} << place.shift));
  return {static_cast<std::int32_t>(source), number, begin, end, place.crcs + 4 * number};
}

void Checksums::will_need(std::int64_t number) {
  const Block block = locate(number);
  const auto mapping = table_.files().mapping(table_.source(block.source).file);
  if (mapping == nullptr) return;
  const std::byte* data = mapping->bytes().data() + block.begin;
  if (Mapping::resident(data)) return;
  Mapping::will_need(data, static_cast<std::size_t>(block.end - block.begin));
}

bool Checksums::check(std::int64_t number) {
  if (is_good(number)) return true;
  {
    MutexLock lock(mutex_);
    if (bad_.contains(number)) return false;
  }
  const Block block = locate(number);
  if (fits(block)) {
    const std::uint64_t bit = std::uint64_t{1} << (number % 64);
    // The thread that sets the bit counts it, since another may have checked the same block.
    if ((good_[static_cast<std::size_t>(number / 64)].fetch_or(bit) & bit) == 0) left_.fetch_sub(1);
    return true;
  }
  std::string complaint = describe(block);
  MutexLock lock(mutex_);
  if (bad_.emplace(number, complaints_.size()).second) complaints_.push_back(std::move(complaint));
  return false;
}

bool Checksums::fits(const Block& block) {
  FileCache& files = table_.files();
  const std::int32_t file = table_.source(block.source).file;
  std::array<std::byte, 4> expected = {};
  std::uint32_t crc = 0;
  bool done = read(block.source, block.crc, expected.size(), expected.data());
  if (const auto mapping = files.mapping(file)) {
    const auto bytes = mapping->bytes().subspan(static_cast<std::size_t>(block.begin),
                                                static_cast<std::size_t>(block.end - block.begin));
    const ByteRange range{bytes.data(), bytes.data() + bytes.size()};
    std::uint32_t* out = &crc;
    done = done && guarded({&range, 1}, [=] { *out = crc32c(bytes); }) == nullptr;
  } else {
    std::vector<std::byte> buffer(kReadBytes);
    for (std::int64_t at = block.begin; done && at < block.end;) {
      const auto size = std::min(buffer.size(), static_cast<std::size_t>(block.end - at));
      done = read(block.source, at, size, buffer.data());
      crc = crc32c({buffer.data(), size}, crc);
      at += static_cast<std::int64_t>(size);
    }
  }
  if (!done) {
    throw OsError(EIO,
                  "cannot read block " + std::to_string(block.number) +
                      " or its checksum: " + files.why_unreadable(file),
                  files.path(file));
  }
  return crc == little_endian(expected);
}

// Fills `out` with bytes of a source. Returns false if they cannot be read.
bool Checksums::read(std::int32_t number, std::int64_t begin, std::size_t size, std::byte* out) {
  const Source& source = table_.source(number);
  if (source.file < 0) {
    std::copy_n(source.memory.data() + begin, size, out);
    return true;
  }
  const auto mapping = table_.files().mapping(source.file);
  if (mapping == nullptr) {
    return table_.files().descriptor(source.file)->read_at(begin, {out, size}) == size;
  }
  const std::byte* data = mapping->bytes().data() + begin;
  const ByteRange range{data, data + size};
  return guarded({&range, 1}, [=] { std::copy_n(data, size, out); }) == nullptr;
}

std::string Checksums::complaint(std::int64_t block) {
  MutexLock lock(mutex_);
  return complaints_.at(bad_.at(block));
}

std::vector<std::string> Checksums::complaints() {
  MutexLock lock(mutex_);
  return complaints_;
}

std::string Checksums::describe(const Block& block) {
  std::string text = table_.files().path(table_.source(block.source).file) + ": block " +
                     std::to_string(block.number) + " (bytes " + std::to_string(block.begin) +
                     " to " + std::to_string(block.end - 1) + ") does not fit its checksum";
  const char* separator = "; rows ";
  for (const Column& column : table_.columns()) {
    const ColumnGroup& group = table_.group_of(column);
    const auto add = [&](std::size_t shard, std::pair<std::int64_t, std::int64_t> rows,
                         const char* what) {
      if (rows.second < rows.first) return;
      const std::int64_t start = group.first_row(shard);
      text += separator + std::to_string(start + rows.first) + " to " +
              std::to_string(start + rows.second) + what + " field '" + column.name + "'";
      separator = ", rows ";
    };
    for (std::size_t shard = 0; shard < group.shard_count(); ++shard) {
      const std::int64_t rows = group.shard_rows(shard);
      if (rows == 0) continue;
      if (column.bounds == nullptr) {
        add(shard, rows_in(column, shard, rows, block), " of");
        continue;
      }
      add(shard, rows_in(column.bounds->column, shard, rows, block), " of the bounds of");
      add(shard,
          rows_of(column, shard, rows_in(column, shard, column.bounds->totals[shard], block)),
          " of");
    }
  }
  return text;
}

std::pair<std::int64_t, std::int64_t> Checksums::rows_in(const Column& column, std::size_t shard,
                                                         std::int64_t rows,
                                                         const Block& block) const {
  const std::int64_t start = column.offsets[shard];
  if (column.sources[shard] != block.source || column.row_bytes == 0 || block.end <= start) {
    return {0, -1};
  }
  const std::int64_t stride = std::max<std::int64_t>(1, column.row_stride);
  const std::int64_t before = block.begin - start - column.row_bytes;  // of a row's last byte
  return {before < 0 ? 0 : before / stride + 1,
          std::min((block.end - 1 - start) / stride, rows - 1)};
}

std::pair<std::int64_t, std::int64_t> Checksums::rows_of(
    const Column& column, std::size_t shard, std::pair<std::int64_t, std::int64_t> elements) {
  if (elements.second < elements.first) return elements;
  const Column& bounds = column.bounds->column;
  // The first row whose end, or else begin, lies behind an element; bounds out of order give any.
  const auto search = [&](std::int64_t element, std::int64_t shift) {
    std::int64_t low = 0, high = table_.group_of(column).shard_rows(shard);
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      std::int64_t bound = 0;
      const std::int64_t at = bounds.offsets[shard] + 8 * (middle + shift);
      if (!read(bounds.sources[shard], at, sizeof bound, reinterpret_cast<std::byte*>(&bound))) {
        return std::int64_t{-1};
      }
      if (bound > element) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  };
  try {
    const std::int64_t first = search(elements.first, 1);
    if (first >= 0) return {first, search(elements.second, 0) - 1};
  } catch (const std::runtime_error&) {
  }
  return {0, -1};  // the bounds cannot be read, so the rows are unknown
}

}  // namespace fastload
