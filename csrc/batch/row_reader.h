// Reads rows by pread: those of files that are not mapped, and scattered small rows of cold files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "batch/row_resolver.h"

namespace fastload {

// A row below this size is small: while the data are cold, scattered small rows are read by pread,
// since a page fault reads and maps up to 64 KiB around a row (the kernel's fault-around and
// read-around). From here on a row has most of those bytes itself.
inline constexpr std::int64_t kSmallRowBytes = 16 << 10;
// Bytes that are read before they are converted or delivered. Balances the cost of a system call
// against the size of the second cache, which still holds them then.
inline constexpr std::size_t kReadBytes = 64 << 10;

// The system calls of one thread's gathers. All functions throw OsError or FormatError naming file,
// field and sample. Not thread-safe: one per thread.
class RowReader {
 public:
  // REQUIRES: resolver outlives this.
  explicit RowReader(RowResolver& resolver) : resolver_(resolver) {}

  // Writes rows side by side to `out`, neighbours in a file by one call. REQUIRES: the column is
  // not ragged and has no strides.
  void read_rows(const Column& column, IndexSpan indices, std::byte* out);
  // Like read_rows(), but returns false where a file cannot be opened again (removed, replaced, cut
  // short, or too many open files). Its mapping, if there is one, still serves then.
  bool try_read_rows(const Column& column, IndexSpan indices, std::byte* out);
  // Reads the runs of the resolver that are not mapped, and if `cold` the small mapped ones.
  // Converts what is stored in another form. Returns the runs that are left to copy.
  std::span<const Run> read_runs(const ColumnSamples& samples, bool cold);

 private:
  void read_neighbours(const Column& column, const RowPlace& place, IndexSpan samples,
                       std::byte* out);
  bool try_read_run(const ColumnSamples& samples, std::size_t run);
  void read_run(const ColumnSamples& samples, std::size_t run);
  std::size_t read_file(const Column& column, std::int64_t sample, std::int32_t file,
                        std::int64_t offset, std::span<std::byte> out) const;

  RowResolver& resolver_;
  std::vector<Run> left_;
  std::vector<std::byte> unconverted_;
};

}  // namespace fastload
