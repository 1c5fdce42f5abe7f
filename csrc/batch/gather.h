// Samples -> memory: reads rows of a column and lays them side by side.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/index_map.h"
#include "batch/copy.h"
#include "batch/copy_strided.h"
#include "batch/pixels.h"
#include "batch/spans.h"
#include "storage/guard.h"
#include "storage/table.h"

namespace fastload {

// How rows of mapped files are read.
enum class Reading {
  mapped,  // from the mapping: fastest when the pages are in the page cache
  cold,    // scattered small rows by pread: a page fault would read and map far more than the row
};

// Below this a row is small.
inline constexpr std::int64_t kSmallRowBytes = 16 << 10;
// So many rows are looked at to learn whether a batch is in the page cache.
inline constexpr std::size_t kProbes = 32;

// Samples of a ragged column of equal length.
struct Padding {
  std::int64_t length;                 // of each sample with its padding, in elements
  std::span<const std::byte> element;  // what follows the elements of a shorter sample
};

// For messages: "field 'x' of sample 3".
std::string describe(const Column& column, std::int64_t sample);
// Makes every byte 0 or 1.
void normalise_booleans(std::byte* data, std::size_t bytes);

// The scratch memory and open files of one thread's gathers. Not thread-safe: one per thread.
class Gatherer {
 public:
  // A worker keeps so many mappings open between its gathers, to skip the file cache's mutex.
  static constexpr std::size_t kMaxPins = 64;

  // REQUIRES: table outlives this.
  explicit Gatherer(const Table& table, std::size_t max_pins = kMaxPins)
      : table_(table), max_pins_(max_pins), bases_(table.source_count(), nullptr) {}

  // Writes the rows of `column` at `indices` to out[0, indices.size() * delivered_bytes()).
  // REQUIRES: the indices were checked. Throws OsError or FormatError naming file, field and
  // sample.
  void gather(const Column& column, IndexSpan indices, std::byte* out, Reading reading);
  // Writes the samples of `column` as images are delivered. REQUIRES: it is neither ragged nor
  // converted, and its rows are such images. Throws as gather() does.
  void gather_images(const Column& column, IndexSpan indices, const ImageDelivery& images,
                     std::byte* out, Reading reading);
  // Reads where the samples of a ragged column lie. REQUIRES: the indices were checked. Throws
  // FormatError naming file, field and sample for bounds that leave the values of their shard, and
  // what gather() throws.
  void read_spans(const Column& column, IndexSpan indices, SpanTable& out, Reading reading);
  // Writes the samples of a ragged column to out[0, spans.total() * delivered_bytes()), or each
  // to `length` elements of its own if they are padded. `spans` are those that read_spans() found
  // for `indices`. Throws as gather() does.
  void gather_ragged(const Column& column, IndexSpan indices, const Spans& spans,
                     const Padding* padding, std::byte* out, Reading reading);
  // Asks the kernel to read the mapped rows ahead; `spans`: those of a ragged column.
  void will_need(const Column& column, IndexSpan indices, const Spans& spans);
  // Whether the mapped rows at a few of `indices` lie in the page cache (true for memory).
  bool resident(const Column& column, IndexSpan indices, const Spans& spans);
  // What gather_ragged() without padding, or gather() with numbers to convert, copies from
  // mappings; `from` is nullptr where a file is read by pread. Until the next call.
  std::span<const Run> runs(const Column& column, IndexSpan indices, const Spans& spans,
                            std::byte* out);
  // The addresses of the mapped rows, until the next call; nullptr where a file is read by pread.
  // REQUIRES: the column has no strides.
  std::span<const std::byte* const> addresses(const Column& column, IndexSpan indices);

 private:
  // What is asked for: samples of a column.
  struct Samples {
    const Column& column;
    IndexSpan indices;
    Spans spans;  // of a ragged column

    bool ragged() const { return column.bounds != nullptr; }
    std::int64_t rows(std::size_t i) const { return ragged() ? spans.length(i) : 1; }
    std::size_t bytes(std::size_t i) const {
      return static_cast<std::size_t>(rows(i) * column.row_bytes);
    }
  };

  const std::byte* base_of(std::int32_t source);
  const Source& source_of(const Column& column, std::int64_t row) const;
  // Fills rows_ with the address of each row; nullptr where a file is read by pread. Returns
  // whether every row has one.
  bool resolve(const Column& column, IndexSpan indices);
  void copy_mapped(const Column& column, IndexSpan indices, std::byte* out);
  void gather_strided(const Column& column, IndexSpan indices, std::byte* out);
  void read_rows(const Column& column, IndexSpan indices, std::byte* out);
  bool try_read_rows(const Column& column, IndexSpan indices, std::byte* out);
  void read_run(const Column& column, const RowPlace& place, IndexSpan samples, std::byte* out);
  [[noreturn]] void throw_fault(const Column& column, IndexSpan indices,
                                const std::byte* fault) const;
  [[noreturn]] void throw_unreadable(const Column& column, std::int64_t sample,
                                     std::int32_t file) const;
  void deliver(const ImageDelivery& images, std::size_t first,
               std::span<const std::byte* const> rows, std::byte* out);
  void deliver_mapped(const Column& column, IndexSpan indices, const ImageDelivery& images,
                      std::size_t first, std::byte* out);
  void deliver_read(const Column& column, IndexSpan indices, const ImageDelivery& images,
                    std::byte* out, bool resolved);
  bool contiguous(std::int64_t row_bytes, std::size_t count) const;
  std::size_t read_file(const Column& column, std::int64_t sample, std::int32_t file,
                        std::int64_t offset, std::span<std::byte> out) const;
  // Fills runs_ with the samples that have bytes; `from` is nullptr where a file is read by pread.
  // Neighbours in source and destination are one run. Returns whether every run is mapped.
  bool make_runs(const Samples& samples, const Padding* padding, std::byte* out);
  void gather_runs(const Samples& samples, const Padding* padding, std::byte* out, Reading reading);
  void copy_runs(const Samples& samples);
  // Leaves in runs_ those that are to be copied.
  void read_runs(const Samples& samples);
  void read_file_run(const Samples& samples, std::size_t run);
  void runs_will_need(const Samples& samples);
  bool runs_resident(const Samples& samples);
  std::int32_t file_of_run(const Column& column, std::size_t run) const;
  // The sample that byte `at` of a run belongs to.
  std::int64_t sample_in_run(const Samples& samples, std::size_t run, std::size_t at) const;
  void forget_many_pins();

  struct Pin {
    std::int32_t source;
    std::shared_ptr<const Mapping> mapping;
  };

  const Table& table_;
  const std::size_t max_pins_;
  std::vector<const std::byte*> bases_;  // of each source that is memory or pinned
  std::vector<Pin> pins_;                // the mappings of this gather, and of recent ones
  std::vector<ByteRange> ranges_;        // of the pins
  std::vector<RowPlace> places_;
  std::vector<const std::byte*> rows_;
  // Of a strided column:
  std::vector<StridedRow> strided_;
  std::vector<std::size_t> by_shard_;
  // Of a ragged or converted column:
  struct Origin {
    std::size_t first;    // sample of the batch
    std::int64_t offset;  // in its source
  };
  std::vector<Run> runs_;
  std::vector<Origin> origins_;  // of the runs
  std::vector<std::int64_t> bounds_;
  std::vector<std::byte> unconverted_;
  // Of images:
  std::vector<ImageWindow> windows_;
  std::vector<const std::byte*> read_;
  std::vector<std::byte> scratch_;
};

}  // namespace fastload
