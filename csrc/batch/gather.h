// Samples -> memory: reads rows of a column and lays them side by side.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "storage/guard.h"
#include "storage/table.h"

namespace fastload {

// How rows of mapped files are read.
enum class Reading {
  mapped,  // from the mapping: fastest when the pages are in the page cache
  cold,    // scattered small rows by pread: a page fault would read and map far more than the row
};

// The scratch memory and open files of one thread's gathers. Not thread-safe: one per thread.
class Gatherer {
 public:
  // REQUIRES: table outlives this.
  explicit Gatherer(const Table& table) : table_(table), bases_(table.source_count(), nullptr) {}

  // Writes the rows of `column` at `indices` to out[0, indices.size() * row_bytes).
  // REQUIRES: the indices were checked. Throws OsError or FormatError naming file, field and
  // sample.
  void gather(const Column& column, std::span<const std::int64_t> indices, std::byte* out,
              Reading reading);
  // Asks the kernel to read the mapped rows ahead.
  void will_need(const Column& column, std::span<const std::int64_t> indices);
  // Whether the mapped rows at a few of `indices` lie in the page cache (true for memory).
  bool resident(const Column& column, std::span<const std::int64_t> indices);
  // The addresses of the mapped rows, until the next call; nullptr where a file is read by pread.
  std::span<const std::byte* const> addresses(const Column& column,
                                              std::span<const std::int64_t> indices);

 private:
  const std::byte* base_of(std::int32_t source);
  const Source& source_of(const Column& column, std::int64_t index) const;
  // Fills rows_ with the address of each row; nullptr where a file is read by pread. Returns
  // whether every row has one.
  bool resolve(const Column& column, std::span<const std::int64_t> indices);
  void copy_mapped(const Column& column, std::span<const std::int64_t> indices, std::byte* out);
  void read_rows(const Column& column, std::span<const std::int64_t> indices, std::byte* out);
  bool try_read_rows(const Column& column, std::span<const std::int64_t> indices, std::byte* out);
  void read_run(const Column& column, const RowPlace& place, std::span<const std::int64_t> samples,
                std::byte* out);
  [[noreturn]] void throw_fault(const Column& column, std::span<const std::int64_t> indices,
                                const std::byte* fault) const;
  [[noreturn]] void throw_unreadable(const Column& column, std::int64_t sample,
                                     std::int32_t file) const;
  bool contiguous(std::int64_t row_bytes, std::size_t count) const;
  void forget_many_pins();

  struct Pin {
    std::int32_t source;
    std::shared_ptr<const Mapping> mapping;
  };

  const Table& table_;
  std::vector<const std::byte*> bases_;  // of each source that is memory or pinned
  std::vector<Pin> pins_;                // the mappings of this gather, and of recent ones
  std::vector<ByteRange> ranges_;        // of the pins
  std::vector<RowPlace> places_;
  std::vector<const std::byte*> rows_;
};

}  // namespace fastload
