// Samples -> addresses: which bytes of which files and memory a gather reads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/index_map.h"
#include "batch/run.h"
#include "batch/spans.h"
#include "storage/guard.h"
#include "storage/table.h"

namespace fastload {

// Samples of one column.
struct ColumnSamples {
  const Column& column;
  IndexSpan indices;
  Spans spans = {};  // of a ragged column

  std::size_t count() const { return indices.size(); }
  bool is_ragged() const { return column.bounds != nullptr; }
  // Rows of sample i: its elements if the column is ragged, else 1.
  std::int64_t rows(std::size_t i) const { return is_ragged() ? spans.length(i) : 1; }
  // Bytes of sample i in its source.
  std::size_t bytes(std::size_t i) const {
    return static_cast<std::size_t>(rows(i) * column.row_bytes);
  }
};

// For messages: "field 'x' of sample 3".
std::string describe(const Column& column, std::int64_t sample);
// Throws OsError: `sample` cannot be read from `file`.
[[noreturn]] void throw_unreadable(const Table& table, const Column& column, std::int64_t sample,
                                   std::int32_t file);

// Finds rows and holds the mappings that it found them in. Not thread-safe: one per thread.
//
// Addresses and runs are valid until the next resolve_*() or page cache call, which may release
// mappings. Opening a file throws OsError or FormatError.
class RowResolver {
 public:
  // Mappings that are held from one call to the next, which saves the file cache's mutex. Balances
  // this against the cache's limit of open mappings, which those held by workers may exceed.
  static constexpr std::size_t kMaxMappings = 64;

  // REQUIRES: table outlives this.
  explicit RowResolver(const Table& table, std::size_t max_mappings = kMaxMappings)
      : table_(table), max_mappings_(max_mappings), bases_(table.source_count(), nullptr) {}

  const Table& table() const { return table_; }

  // Finds the address of each row; nullptr where a file is read by pread. Returns whether every row
  // has one. REQUIRES: the column has no strides.
  bool resolve_rows(const Column& column, IndexSpan indices);
  std::span<const std::byte* const> rows() const { return rows_; }
  // Whether rows(), each of `row_bytes` bytes, are one block of bytes.
  bool is_contiguous(std::int64_t row_bytes) const;

  // Finds the samples that have bytes, neighbours in source and destination as one run. `out` is
  // where the first sample goes, or nullptr if nothing is to be copied; `padding`, or nullptr:
  // samples are laid side by side. `from` is nullptr where a file is read by pread. Returns whether
  // every run is mapped. REQUIRES: the column has no strides.
  bool resolve_runs(const ColumnSamples& samples, const Padding* padding, std::byte* out);
  std::span<const Run> runs() const { return runs_; }
  // The first sample of a run, as a number in the batch.
  std::size_t first_sample(std::size_t run) const { return origins_[run].sample; }
  // The byte of its source where a run starts.
  std::int64_t offset(std::size_t run) const { return origins_[run].offset; }
  // The file that a run lies in; -1 in memory.
  std::int32_t file(const Column& column, std::size_t run) const;
  // The index of the sample that byte `at` of a run belongs to.
  std::int64_t index_at(const ColumnSamples& samples, std::size_t run, std::size_t at) const;

  // Finds the shard and row of each sample. Valid until the next call of any member but an
  // accessor.
  std::span<const RowPlace> locate(const Column& column, IndexSpan indices);

  // All mappings that are held: a copy from addresses found here needs guarded() unless empty.
  std::span<const ByteRange> mapped_ranges() const { return ranges_; }
  // Throws OsError for the sample of which guarded() could not read the byte at `fault`. REQUIRES:
  // nothing else was resolved since.
  [[noreturn]] void throw_fault(const ColumnSamples& samples, const std::byte* fault);

  // Starts reading the mapped samples into the page cache.
  void will_need(const ColumnSamples& samples);
  // Whether a few of the mapped samples lie in the page cache; true for memory.
  bool is_resident(const ColumnSamples& samples);

 private:
  struct HeldMapping {
    std::int32_t source;
    std::shared_ptr<const Mapping> mapping;
  };
  struct Origin {
    std::size_t sample;
    std::int64_t offset;
  };

  const std::byte* base_of(std::int32_t source);
  std::int64_t offset_of(const ColumnSamples& samples, std::size_t i) const;
  bool find_runs(const ColumnSamples& samples, const Padding* padding, std::byte* out);
  void release_surplus();

  const Table& table_;
  const std::size_t max_mappings_;
  std::vector<const std::byte*> bases_;  // of each source that is memory or held
  std::vector<HeldMapping> held_;
  std::vector<ByteRange> ranges_;  // of the held mappings
  std::vector<RowPlace> places_;
  std::vector<const std::byte*> rows_;
  std::vector<Run> runs_;
  std::vector<Origin> origins_;  // of the runs
};

}  // namespace fastload
