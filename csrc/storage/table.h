// Where a sample lies: groups of columns, cut into shards, over files and memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fork.h"
#include "storage/file_cache.h"

namespace fastload {

// Place of a row: which shard of its group, and which row in it.
struct RowPlace {
  std::int32_t shard;
  std::int64_t row;
};

// One field of the samples of a group.
struct Column {
  std::string name;
  std::int64_t row_bytes;
  std::int64_t row_stride;            // from one row to the next; differs from row_bytes in windows
  std::vector<std::int32_t> sources;  // per shard
  std::vector<std::int64_t> offsets;  // per shard: of row 0 in its source
  bool boolean;                       // every byte is delivered as 0 or 1
  std::int32_t group;
};

// Columns that share their shard boundaries. Boundaries may differ between groups.
class ColumnGroup {
 public:
  // `index_map` (dataset index -> row) outlives the table; empty without one. Throws
  // std::invalid_argument for negative counts and maps that leave the rows.
  ColumnGroup(std::span<const std::int64_t> shard_rows, std::span<const std::int64_t> index_map,
              bool mapped);

  std::int64_t rows() const { return starts_.back(); }  // of all shards
  std::int64_t samples() const { return mapped_ ? static_cast<std::int64_t>(map_.size()) : rows(); }
  std::size_t shard_count() const { return starts_.size() - 1; }
  std::int64_t shard_rows(std::size_t shard) const { return starts_[shard + 1] - starts_[shard]; }
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

// Bytes that a column lies in: a file of the cache, or memory that outlives the table.
struct Source {
  std::int32_t file = -1;
  std::span<const std::byte> memory;
};

// Immutable after construction and safe to use from any thread of the process that made it.
class Table {
 public:
  // Throws std::invalid_argument or FormatError unless every row of every column lies inside its
  // source and all groups have equally many samples.
  Table(std::unique_ptr<FileCache> files, std::vector<Source> sources,
        std::vector<ColumnGroup> groups, std::vector<Column> columns);

  std::int64_t rows() const { return rows_; }
  std::span<const Column> columns() const { return columns_; }
  const ColumnGroup& group_of(const Column& column) const {
    return groups_[static_cast<std::size_t>(column.group)];
  }
  const Source& source(std::int32_t number) const {
    return sources_[static_cast<std::size_t>(number)];
  }
  std::size_t source_count() const { return sources_.size(); }
  FileCache& files() const { return *files_; }
  // Throws std::out_of_range naming the first index outside [0, rows()).
  void check_indices(std::span<const std::int64_t> indices) const;
  // Throws StoppedError in a forked child: the file cache's mutex belongs to the parent.
  void check_process() const;

 private:
  void check_column(const Column& column) const;

  const std::uint64_t generation_ = fork_generation();
  std::unique_ptr<FileCache> files_;
  std::vector<Source> sources_;
  std::vector<ColumnGroup> groups_;
  std::vector<Column> columns_;
  std::int64_t rows_ = 0;
};

}  // namespace fastload
