// Locates samples: groups of columns, split into shards, over files and memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fork.h"
#include "base/index_map.h"
#include "storage/file_cache.h"
#include "storage/stored.h"
#include "storage/strides.h"

namespace fastload {

// The location of a row: a shard of its group, and a row of that shard.
struct RowPlace {
  std::int32_t shard;
  std::int64_t row;
};

struct Bounds;

// One field of the samples of a group. In a ragged column, whose samples have any number of
// elements, a row is an element; the rows of a shard are contiguous, and `bounds` has those of each
// sample.
struct Column {
  std::string name;
  std::int64_t row_bytes;   // in the source
  std::int64_t row_stride;  // from one row to the next; less than row_bytes if rows overlap
  std::vector<std::int32_t> sources;  // per shard
  std::vector<std::int64_t> offsets;  // per shard: byte of its source where row 0 starts
  bool boolean;                       // bytes are delivered as 0 or 1
  std::int32_t group;
  std::shared_ptr<const Bounds> bounds = nullptr;  // of a ragged column
  Stored stored = Stored::kAsDelivered;
  // Per shard, all in memory, if rows are not blocks of bytes; then `row_stride` is ignored.
  std::vector<RowStrides> strides = {};

  bool strided() const { return !strides.empty(); }
  std::int64_t delivered_bytes() const {  // of a row
    if (stored == Stored::kAsDelivered) return row_bytes;
    return row_bytes / stored_bytes(stored) * static_cast<std::int64_t>(sizeof(std::int64_t));
  }
};

// The bounds of the samples of a ragged column: rows + 1 int64 per shard, each the start of a
// sample and the end of the one before, in elements of the shard. They come from a file, so they
// are checked whenever they are read.
struct Bounds {
  Column column;                     // a window of two bounds per row: row_bytes 16, row_stride 8
  std::vector<std::int64_t> totals;  // per shard: elements that its values hold
};

// Columns with the same shard boundaries. Immutable. Thread-safe.
class ColumnGroup {
 public:
  // `index_map` (dataset index -> row) outlives the table; empty without one. Throws
  // std::invalid_argument for negative counts and maps that leave the rows.
  ColumnGroup(std::span<const std::int64_t> shard_rows, std::span<const std::int64_t> index_map,
              bool mapped);

  std::int64_t rows() const { return starts_.back(); }  // of all shards
  std::int64_t samples() const { return mapped_ ? static_cast<std::int64_t>(map_.size()) : rows(); }
  bool mapped() const { return mapped_; }
  std::size_t shard_count() const { return starts_.size() - 1; }
  std::int64_t shard_rows(std::size_t shard) const { return starts_[shard + 1] - starts_[shard]; }
  std::int64_t first_row(std::size_t shard) const { return starts_[shard]; }
  // REQUIRES: 0 <= index < samples(). Throws std::out_of_range if the map's owner wrote a wrong row
  // to it after it was checked.
  std::int64_t row_of(std::int64_t index) const {
    if (!mapped_) return index;
    const std::int64_t row = map_[static_cast<std::size_t>(index)];
    if (static_cast<std::uint64_t>(row) >= static_cast<std::uint64_t>(rows())) throw_bad_map(row);
    return row;
  }
  // REQUIRES: every index lies in [0, samples()); places.size() == indices.size().
  void locate(std::span<const std::int64_t> indices, std::span<RowPlace> places) const;

 private:
  [[noreturn]] void throw_bad_map(std::int64_t row) const;

  std::vector<std::int64_t> starts_;  // first row of each shard, then the total
  std::span<const std::int64_t> map_;
  bool mapped_;
  std::int64_t uniform_rows_ = 0;  // rows of every shard but the last; 0 if they differ
};

// The part of a file that is split into blocks with a CRC-32C each. The last one may be shorter.
struct BlockExtent {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t block_bytes = 0;  // 0: there are no checksums
  std::int64_t crcs = 0;         // byte of the file where they start: little-endian uint32s
};

// The bytes of a shard: a file of the cache, or memory that outlives the table.
struct Source {
  std::int32_t file = -1;
  std::span<const std::byte> memory = {};
  BlockExtent blocks = {};
};

class Checksums;

// Immutable after construction and safe to use from any thread of the process that made it.
class Table {
 public:
  // `map`: from indices of the dataset to samples of the groups; nullptr: the identity.
  // Throws std::invalid_argument or FormatError unless every row of every column lies inside its
  // source and all groups, and the map, have equally many samples.
  Table(std::unique_ptr<FileCache> files, std::vector<Source> sources,
        std::vector<ColumnGroup> groups, std::vector<Column> columns,
        std::shared_ptr<const IndexMap> map = nullptr);
  ~Table();

  std::int64_t rows() const { return rows_; }  // indices lie in [0, rows())
  std::span<const Column> columns() const { return columns_; }
  const ColumnGroup& group_of(const Column& column) const {
    return groups_[static_cast<std::size_t>(column.group)];
  }
  const Source& source(std::int32_t number) const {
    return sources_[static_cast<std::size_t>(number)];
  }
  // For messages: the quoted path of a file, or "memory".
  std::string source_name(std::int32_t number) const;
  std::size_t source_count() const { return sources_.size(); }
  FileCache& files() const { return *files_; }
  // nullptr if no source has any.
  Checksums* checksums() const { return checksums_.get(); }
  // Throws std::out_of_range naming the first index outside [0, rows()).
  void check_indices(std::span<const std::int64_t> indices) const;
  // Returns the indices with their rows, which are computed into `memory` if there is a map.
  // REQUIRES: the indices were checked.
  IndexSpan mapped(std::span<const std::int64_t> indices, std::vector<std::int64_t>& memory) const;
  // Throws StoppedError in a forked child: the file cache's mutex belongs to the parent.
  void check_process() const;

 private:
  void check_column(const Column& column) const;
  void check_strided(const Column& column) const;
  // Throws FormatError unless `rows` rows of a shard lie inside their source.
  void check_extent(const Column& column, std::size_t shard, std::int64_t rows) const;

  const std::uint64_t generation_ = fork_generation();
  std::unique_ptr<FileCache> files_;
  std::vector<Source> sources_;
  std::vector<ColumnGroup> groups_;
  std::vector<Column> columns_;
  std::shared_ptr<const IndexMap> map_;
  std::int64_t rows_ = 0;
  std::unique_ptr<Checksums> checksums_;
};

}  // namespace fastload
