// A table over files whose blocks have checksums, some of them wrong.
#pragma once

#include <algorithm>
#include <set>

#include "base/crc32c.h"
#include "fixtures.h"
#include "storage/checksums.h"

namespace fixtures {

using fastload::BlockExtent;
using fastload::Checksums;

// Two columns, rows of 64 and 1000 bytes, in each file: a header, the columns, checksums, a tail.
struct CheckedTable {
  static constexpr std::int64_t kHeader = 100;
  static constexpr std::int64_t kBlock = 4096;
  static constexpr std::int64_t kRowBytes[2] = {64, 1000};

  CheckedTable(const Folder& folder, const std::vector<std::int64_t>& shard_rows, Io io = Io::kAuto,
               const Indices* map = nullptr)
      : rows(shard_rows) {
    std::int64_t first = 0;
    for (std::size_t s = 0; s < rows.size(); ++s) {
      paths.push_back(folder / ("shard " + std::to_string(s)));
      Bytes bytes(kHeader, std::byte{0xEE});
      for (std::size_t c = 0; c < 2; ++c) {
        for (std::int64_t row = first; row < first + rows[s]; ++row) {
          for (std::int64_t at = 0; at < kRowBytes[c]; ++at) {
            bytes.push_back(expected(c, row, at));
          }
        }
      }
      first += rows[s];
      bytes.resize(bytes.size() + 5000, std::byte{0});  // a pad, longer than a block
      ends.push_back(static_cast<std::int64_t>(bytes.size()));
      const std::span<const std::byte> data = std::span(bytes).subspan(kHeader);
      std::vector<std::uint32_t> crcs;
      for (std::size_t at = 0; at < data.size(); at += kBlock) {
        crcs.push_back(
            fastload::crc32c(data.subspan(at, std::min<std::size_t>(kBlock, data.size() - at))));
      }
      for (const std::uint32_t crc : crcs) {
        for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<std::byte>(crc >> (8 * i)));
      }
      bytes.resize(bytes.size() + 10, std::byte{0});
      write_file(paths.back(), bytes);
      files.push_back(std::move(bytes));
    }
    open_again(io, map);
  }

  // A new table, which knows nothing of the blocks.
  void open_again(Io io = Io::kAuto, const Indices* map = nullptr) {
    auto cache = std::make_unique<FileCache>(io);
    std::vector<Source> sources;
    std::vector<Column> columns;
    for (std::size_t c = 0; c < 2; ++c) {
      columns.push_back(
          {"field" + std::to_string(c), kRowBytes[c], kRowBytes[c], {}, {}, false, 0});
    }
    for (std::size_t s = 0; s < rows.size(); ++s) {
      const std::int32_t file = cache->add(paths[s], static_cast<std::int64_t>(files[s].size()));
      sources.push_back({file, {}, {kHeader, ends[s], kBlock, ends[s]}});
      for (Column& column : columns) column.sources.push_back(static_cast<std::int32_t>(s));
      columns[0].offsets.push_back(kHeader);
      columns[1].offsets.push_back(kHeader + kRowBytes[0] * rows[s]);
    }
    map_ = map != nullptr ? *map : Indices();
    std::vector<ColumnGroup> groups;
    groups.emplace_back(rows, map_, map != nullptr);
    table = std::make_shared<const Table>(std::move(cache), std::move(sources), std::move(groups),
                                          std::move(columns));
  }

  // Flips a bit of a file, or flips it back.
  void flip(std::size_t shard, std::int64_t at) {
    files[shard][static_cast<std::size_t>(at)] ^= std::byte{0x10};
    write_file(paths[shard], files[shard]);
  }

  // Whether a row of the whole touches one of these blocks of its shard.
  bool touches(std::int64_t row, std::size_t bad_shard, std::int64_t bad_block) const {
    std::size_t shard = 0;
    while (row >= rows[shard]) row -= rows[shard++];
    if (shard != bad_shard) return false;
    const std::int64_t starts[2] = {row * kRowBytes[0],
                                    kRowBytes[0] * rows[shard] + row * kRowBytes[1]};
    for (std::size_t c = 0; c < 2; ++c) {
      if (starts[c] / kBlock <= bad_block && bad_block <= (starts[c] + kRowBytes[c] - 1) / kBlock) {
        return true;
      }
    }
    return false;
  }

  std::int64_t total() const {
    std::int64_t sum = 0;
    for (const std::int64_t count : rows) sum += count;
    return sum;
  }

  std::vector<std::int64_t> rows;
  std::vector<std::string> paths;
  std::vector<Bytes> files;
  std::vector<std::int64_t> ends;  // of the blocks
  std::shared_ptr<const Table> table;

 private:
  Indices map_;
};

inline Indices all_of(std::int64_t rows) {
  Indices indices;
  for (std::int64_t i = 0; i < rows; ++i) indices.push_back(i);
  return indices;
}

}  // namespace fixtures
