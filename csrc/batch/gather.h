// Samples -> memory: writes the rows of a column side by side, in the form that a batch has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/index_map.h"
#include "batch/copy_strided.h"
#include "batch/pixels.h"
#include "batch/row_reader.h"
#include "batch/row_resolver.h"
#include "batch/spans.h"
#include "storage/table.h"

namespace fastload {

// How rows of mapped files are read.
enum class Reading {
  kMapped,  // from the mapping: fastest when the pages are in the page cache
  kCold,    // scattered small rows by pread: a page fault would read and map far more than the row
};

// Makes every byte 0 or 1.
void normalise_booleans(std::byte* data, std::size_t bytes);

// The working memory and open files of one thread's gathers. Not thread-safe: one per thread.
//
// Members throw OsError or FormatError naming file, field and sample. REQUIRES, for all: the
// indices were checked, and `out` does not overlap the sources.
class Gatherer {
 public:
  // REQUIRES: table outlives this.
  explicit Gatherer(const Table& table, std::size_t max_mappings = RowResolver::kMaxMappings)
      : table_(table), resolver_(table, max_mappings), reader_(resolver_) {}
  Gatherer(const Gatherer&) = delete;
  Gatherer& operator=(const Gatherer&) = delete;

  // Writes the rows of `column` at `indices` to out[0, indices.size() * delivered_bytes()).
  void gather(const Column& column, IndexSpan indices, std::byte* out, Reading reading);
  // Writes the samples of `column` in the form that `images` describes. REQUIRES: the column is
  // neither ragged nor converted, and its rows have the shape of `images`.
  void gather_images(const Column& column, IndexSpan indices, const ImageDelivery& images,
                     std::byte* out, Reading reading);
  // Reads where the samples of a ragged column lie. Throws FormatError, too, for bounds that leave
  // the values of their shard.
  void read_spans(const Column& column, IndexSpan indices, SpanTable& out, Reading reading);
  // Writes the samples of a ragged column to out[0, spans.total() * delivered_bytes()); with
  // `padding`, each to padding->length elements of its own. `spans` are those that read_spans()
  // found for `indices`.
  void gather_ragged(const Column& column, IndexSpan indices, const Spans& spans,
                     const Padding* padding, std::byte* out, Reading reading);

  // The addresses of rows, and what of them is in the page cache.
  RowResolver& resolver() { return resolver_; }

 private:
  bool reads_by_pread(const Column& column, Reading reading) const;
  template <class Copy>
  void copy_guarded(const ColumnSamples& samples, const Copy& copy);
  void copy_rows(const Column& column, IndexSpan indices, std::byte* out);
  void copy_runs(const ColumnSamples& samples, std::span<const Run> runs);
  void gather_runs(const ColumnSamples& samples, const Padding* padding, std::byte* out,
                   Reading reading);
  void gather_strided(const Column& column, IndexSpan indices, std::byte* out);
  void deliver(const ImageDelivery& images, std::size_t first,
               std::span<const std::byte* const> rows, std::byte* out);
  void deliver_rows(const Column& column, IndexSpan indices, const ImageDelivery& images,
                    std::size_t first, std::byte* out);
  void deliver_in_chunks(const Column& column, IndexSpan indices, const ImageDelivery& images,
                         std::byte* out, bool is_mapped);

  const Table& table_;
  RowResolver resolver_;
  RowReader reader_;
  std::vector<std::int64_t> bounds_;  // of ragged samples
  // Of a strided column:
  std::vector<StridedRow> strided_;
  std::vector<std::size_t> by_shard_;
  // Of images:
  std::vector<ImageWindow> windows_;
  std::vector<std::byte> chunk_;
  std::vector<const std::byte*> chunk_rows_;
  std::vector<std::byte> scratch_;
};

}  // namespace fastload
