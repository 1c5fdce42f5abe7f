// Checks blocks of files against their checksums, each when it is first read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "storage/table.h"

namespace fastload {

// The blocks of all files of a table that have checksums, numbered from 0, with one bit for each:
// set once its bytes matched. A bad block keeps its bit clear and is kept with a message, so that
// it is not read again. Bytes outside the blocks are not checked.
//
// Thread-safe. Two threads may check the same block at the same time; both get the same answer.
class Checksums {
 public:
  // Only blocks that the rows of `table` lie in are ever checked. REQUIRES: table outlives
  // this. Throws FormatError where blocks or their checksums leave their file.
  explicit Checksums(const Table& table);

  // Whether every block that the columns reach is known to be good, so that no check is left.
  bool all_good() const { return left_.load(std::memory_order_relaxed) == 0; }
  // Appends the blocks of bytes [begin, end) of a source that are not known to be good.
  void unchecked(std::int32_t source, std::int64_t begin, std::int64_t end,
                 std::vector<std::int64_t>& out) const {
    const Place& place = places_[static_cast<std::size_t>(source)];
    if (begin < place.begin) begin = place.begin;
    if (end > place.end) end = place.end;
    if (begin >= end) return;
    const std::int64_t last = place.first + ((end - 1 - place.begin) >> place.shift);
    for (std::int64_t b = place.first + ((begin - place.begin) >> place.shift); b <= last; ++b) {
      if (!is_good(b)) out.push_back(b);
    }
  }
  // Starts reading a block into the page cache if it is not there.
  void will_need(std::int64_t block);
  // Whether the bytes of a block match its checksum. Throws OsError if they cannot be read.
  bool check(std::int64_t block);
  // Describes a bad block: its file and bytes, and the rows in it. REQUIRES: check(block) returned
  // false.
  std::string complaint(std::int64_t block);
  // The complaints about all bad blocks found so far, in the order in which they were found.
  std::vector<std::string> complaints();

 private:
  // The blocks of one source: bytes [begin, end), empty without checksums.
  struct Place {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t crcs = 0;
    std::int64_t first = 0;  // the number of its first block
    int shift = 0;           // blocks are of 2^shift bytes
  };
  struct Block {
    std::int32_t source;
    std::int64_t number;  // in its file
    std::int64_t begin;
    std::int64_t end;
    std::int64_t crc;  // byte of the file where its checksum lies
  };

  // A set bit means that the file held the right bytes once; it publishes nothing else, so a
  // relaxed load is enough.
  bool is_good(std::int64_t block) const {
    const std::uint64_t word =
        good_[static_cast<std::size_t>(block) / 64].load(std::memory_order_relaxed);
    return (word >> (block % 64) & 1) != 0;
  }
  Place place_of(const Source& source, std::int64_t first) const;
  void require_all();
  void require_rows(const Column& column, const ColumnGroup& group);
  void require(std::int32_t source, std::int64_t begin, std::int64_t end);
  Block locate(std::int64_t block) const;
  bool fits(const Block& block);
  bool read(std::int32_t source, std::int64_t begin, std::size_t size, std::byte* out);
  std::string describe(const Block& block);
  // The rows of a column's shard that reach into a block, the first and the last; none: last <
  // first.
  std::pair<std::int64_t, std::int64_t> rows_in(const Column& column, std::size_t shard,
                                                std::int64_t rows, const Block& block) const;
  // The rows of the elements from `first` to `last` of a ragged column.
  std::pair<std::int64_t, std::int64_t> rows_of(const Column& column, std::size_t shard,
                                                std::pair<std::int64_t, std::int64_t> elements);

  const Table& table_;
  std::vector<Place> places_;         // one per source
  std::vector<std::int64_t> firsts_;  // Place::first of each source, then the total
  std::unique_ptr<std::atomic<std::uint64_t>[]> good_;
  std::atomic<std::int64_t> left_{0};  // clear bits

  Mutex mutex_;
  std::map<std::int64_t, std::size_t> bad_ FL_GUARDED_BY(mutex_);  // to its complaint
  std::vector<std::string> complaints_ FL_GUARDED_BY(mutex_);
};

}  // namespace fastload
