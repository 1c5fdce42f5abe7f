#include "storage/table.h"

#include <algorithm>
#include <stdexcept>

#include "base/bytes.h"
#include "base/error.h"
#include "storage/checksums.h"

namespace fastload {

ColumnGroup::ColumnGroup(std::span<const std::int64_t> shard_rows,
                         std::span<const std::int64_t> index_map, bool mapped)
    : map_(index_map), mapped_(mapped) {
  starts_.reserve(shard_rows.size() + 1);
  starts_.push_back(0);
  for (std::int64_t rows : shard_rows) {
    if (rows < 0)
      throw std::invalid_argument("the rows of a shard must not be negative, got " +
                                  std::to_string(rows));
    starts_.push_back(checked_add(starts_.back(), rows));
  }
  for (std::int64_t row : map_) {
    if (row < 0 || row >= rows()) {
      throw std::invalid_argument("the index map holds row " + std::to_string(row) + " of " +
                                  std::to_string(rows()));
    }
  }
  if (shard_rows.empty() || shard_rows.front() == 0) return;
  const bool uniform = std::all_of(shard_rows.begin(), shard_rows.end() - 1,
                                   [&](std::int64_t rows) { return rows == shard_rows.front(); }) &&
                       shard_rows.back() <= shard_rows.front();
  if (uniform) uniform_rows_ = shard_rows.front();
}

void ColumnGroup::throw_bad_map(std::int64_t row) const {
  throw std::out_of_range("the index map was changed while in use: it holds row " +
                          std::to_string(row) + " of " + std::to_string(rows()));
}

void ColumnGroup::locate(std::span<const std::int64_t> indices, std::span<RowPlace> places) const {
  if (shard_count() == 1) {
    for (std::size_t i = 0; i < indices.size(); ++i) places[i] = {0, row_of(indices[i])};
  } else if (uniform_rows_ > 0) {
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const std::int64_t row = row_of(indices[i]);
      places[i] = {static_cast<std::int32_t>(row / uniform_rows_), row % uniform_rows_};
    }
  } else {
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const std::int64_t row = row_of(indices[i]);
      const auto next = std::upper_bound(starts_.begin() + 1, starts_.end(), row);
      places[i] = {static_cast<std::int32_t>(next - starts_.begin() - 1), row - *(next - 1)};
    }
  }
}

Table::Table(std::unique_ptr<FileCache> files, std::vector<Source> sources,
             std::vector<ColumnGroup> groups, std::vector<Column> columns,
             std::shared_ptr<const IndexMap> map)
    : files_(std::move(files)),
      sources_(std::move(sources)),
      groups_(std::move(groups)),
      columns_(std::move(columns)),
      map_(std::move(map)) {
  if (groups_.empty())
    throw std::invalid_argument("a table must have at least one group, got none");
  rows_ = groups_.front().samples();
  for (const ColumnGroup& group : groups_) {
    if (group.samples() != rows_) {
      throw std::invalid_argument("groups of " + std::to_string(rows_) + " and " +
                                  std::to_string(group.samples()) + " samples cannot be combined");
    }
  }
  if (map_ != nullptr) {
    if (map_->row_limit() != rows_) {
      throw std::invalid_argument("an index map for " + std::to_string(map_->row_limit()) +
                                  " samples does not fit " + std::to_string(rows_));
    }
    rows_ = map_->index_limit();
  }
  for (const Column& column : columns_) check_column(column);
  const auto has_blocks = [](const Source& source) { return source.blocks.block_bytes != 0; };
  if (std::any_of(sources_.begin(), sources_.end(), has_blocks)) {
    checksums_ = std::make_unique<Checksums>(*this);
  }
}

Table::~Table() = default;

void Table::check_column(const Column& column) const {
  const ColumnGroup& group = groups_.at(static_cast<std::size_t>(column.group));
  const std::string where = "field '" + column.name + "': ";
  if (column.row_bytes < 0 || column.row_stride < 0) {
    throw std::invalid_argument(where + "row_bytes and row_stride must not be negative, got " +
                                std::to_string(column.row_bytes) + " and " +
                                std::to_string(column.row_stride));
  }
  if (column.stored != Stored::kAsDelivered) {
    if (column.boolean)
      throw std::invalid_argument(where + "booleans cannot be converted to int64");
    if (column.row_bytes % stored_bytes(column.stored) != 0) {
      throw std::invalid_argument(
          where + "row_bytes must be a multiple of " + std::to_string(stored_bytes(column.stored)) +
          ", the size of a number, got " + std::to_string(column.row_bytes));
    }
    checked_mul(column.row_bytes, sizeof(std::int64_t));
  }
  const std::size_t shards = group.shard_count();
  if (column.sources.size() != shards || column.offsets.size() != shards) {
    throw std::invalid_argument(where + "there must be one source and one offset for each of " +
                                std::to_string(shards) + " shards, got " +
                                std::to_string(column.sources.size()) + " and " +
                                std::to_string(column.offsets.size()));
  }
  if (column.strided()) return check_strided(column);
  const Bounds* bounds = column.bounds.get();
  if (bounds != nullptr) {
    if (column.row_stride != column.row_bytes) {
      throw std::invalid_argument(where + "row_stride of a ragged column must be row_bytes, " +
                                  std::to_string(column.row_bytes) + ", got " +
                                  std::to_string(column.row_stride));
    }
    if (bounds->totals.size() != shards) {
      throw std::invalid_argument(where + "there must be one total for each of " +
                                  std::to_string(shards) + " shards, got " +
                                  std::to_string(bounds->totals.size()));
    }
    check_column(bounds->column);
  }
  for (std::size_t shard = 0; shard < shards; ++shard) {
    const std::int64_t rows = group.shard_rows(shard);
    const std::int64_t total = bounds != nullptr ? bounds->totals[shard] : rows;
    if (total < 0)
      throw std::invalid_argument(where + "the total of a shard must not be negative, got " +
                                  std::to_string(total));
    check_extent(column, shard, rows > 0 ? total : 0);
  }
}

void Table::check_strided(const Column& column) const {
  const ColumnGroup& group = group_of(column);
  const std::string where = "field '" + column.name + "': ";
  if (column.bounds != nullptr || column.stored != Stored::kAsDelivered ||
      column.strides.size() != group.shard_count()) {
    throw std::invalid_argument(
        where +
        "strides are for columns that are neither ragged nor converted, one set for each of " +
        std::to_string(group.shard_count()) + " shards, got " +
        std::to_string(column.strides.size()));
  }
  for (std::size_t shard = 0; shard < group.shard_count(); ++shard) {
    const Source& source = sources_.at(static_cast<std::size_t>(column.sources[shard]));
    if (source.file >= 0)
      throw std::invalid_argument(where + "strides are for memory, got '" +
                                  files_->path(source.file) + "'");
    const std::int64_t rows = group.shard_rows(shard);
    if (rows == 0 || column.row_bytes == 0) continue;
    const RowStrides& strides = column.strides[shard];
    std::int64_t row_bytes = strides.item_bytes;
    for (const Axis& axis : strides.axes) row_bytes *= axis.length;
    if (row_bytes != column.row_bytes) {
      throw std::invalid_argument(where + "strides must be those of rows of " +
                                  std::to_string(column.row_bytes) + " bytes, got some of " +
                                  std::to_string(row_bytes));
    }
    const std::int64_t reach = checked_mul(rows - 1, strides.row);
    const std::int64_t first =
        checked_add(column.offsets[shard] + strides.low, std::min<std::int64_t>(reach, 0));
    const std::int64_t end = checked_add(checked_add(column.offsets[shard], strides.high),
                                         std::max<std::int64_t>(reach, 0));
    if (first >= 0 && std::cmp_less_equal(end, source.memory.size())) continue;
    throw FormatError(where + std::to_string(rows) + " rows lie at bytes " + std::to_string(first) +
                      " to " + std::to_string(end) + " of memory, which has " +
                      std::to_string(source.memory.size()));
  }
}

void Table::check_extent(const Column& column, std::size_t shard, std::int64_t rows) const {
  const Source& source = sources_.at(static_cast<std::size_t>(column.sources[shard]));
  const std::int64_t offset = column.offsets[shard];
  const std::int64_t size = source.file >= 0 ? files_->size_bytes(source.file)
                                             : static_cast<std::int64_t>(source.memory.size());
  std::int64_t end = offset;
  if (rows > 0) {
    end = checked_add(checked_add(offset, checked_mul(rows - 1, column.row_stride)),
                      column.row_bytes);
  }
  if (offset >= 0 && end <= size) return;
  const std::string what = column.bounds != nullptr ? " elements" : " rows";
  throw FormatError("field '" + column.name + "': " + std::to_string(rows) + what +
                    " end at byte " + std::to_string(end) + " of " +
                    source_name(column.sources[shard]) + ", which has " + std::to_string(size));
}

std::string Table::source_name(std::int32_t number) const {
  const Source& source = this->source(number);
  return source.file >= 0 ? "'" + files_->path(source.file) + "'" : "memory";
}

void Table::check_indices(std::span<const std::int64_t> indices) const {
  // One pass without branches for the usual case.
  std::uint64_t largest = 0;
  for (std::int64_t index : indices) {
    largest = std::max(largest, static_cast<std::uint64_t>(index));
  }
  if (indices.empty() || largest < static_cast<std::uint64_t>(rows_)) return;
  for (std::int64_t index : indices) {
    if (index >= 0 && index < rows_) continue;
    throw std::out_of_range("index " + std::to_string(index) +
                            " is out of range for a dataset of " + std::to_string(rows_) +
                            " samples");
  }
}

IndexSpan Table::mapped(std::span<const std::int64_t> indices,
                        std::vector<std::int64_t>& memory) const {
  if (map_ == nullptr) return indices;
  memory.resize(indices.size());
  map_->rows(indices, memory);
  return {indices, memory};
}

void Table::check_process() const {
  if (generation_ == fork_generation()) return;
  throw StoppedError("this table was opened in the parent process; open the dataset again here");
}

}  // namespace fastload
