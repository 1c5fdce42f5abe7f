// Checks the blocks of samples before they are read.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "batch/spans.h"
#include "storage/checksums.h"
#include "storage/table.h"

namespace fastload {

// The working memory of one thread's checks. Not thread-safe: one per thread. Checks cost nothing
// for tables without checksums, and once all blocks are known to be good.
//
// Both checks throw FormatError for a bad block if `missing` is nullptr. Otherwise they move the
// samples in bad blocks from `indices` to the end of `missing`, and return whether there were any.
// `draws`: nullptr, empty, or those of the samples, from which the same ones are removed. They
// throw OsError for blocks that cannot be read, and StoppedError. REQUIRES: the indices were
// checked.
class BlockCheck {
 public:
  // While `stopping` is set, a check ends between two blocks. REQUIRES: both outlive this.
  explicit BlockCheck(const Table& table, const std::atomic<bool>* stopping = nullptr)
      : table_(table), stopping_(stopping) {}

  // Whether there is nothing to do for any sample.
  bool idle() const { return table_.checksums() == nullptr || table_.checksums()->all_good(); }
  // Checks the rows of fixed columns and the bounds of ragged ones.
  bool check_rows(std::vector<std::int64_t>& indices, std::vector<std::int64_t>* missing,
                  std::vector<std::int64_t>* draws = nullptr);
  // Checks the values of ragged columns. `spans`: of each column, for these indices. REQUIRES:
  // check_rows() was called for these indices.
  bool check_values(std::vector<std::int64_t>& indices, std::span<const SpanTable> spans,
                    std::vector<std::int64_t>* missing, std::vector<std::int64_t>* draws = nullptr);

 private:
  struct Range {
    std::int32_t source;
    std::int64_t begin;
    std::int64_t end;
  };
  enum class Part { kRows, kValues };

  bool check(Part part, std::vector<std::int64_t>& indices, std::span<const SpanTable> spans,
             std::vector<std::int64_t>* missing, std::vector<std::int64_t>* draws);
  void move_bad(std::vector<std::int64_t>& indices, std::vector<std::int64_t>& missing,
                std::vector<std::int64_t>* draws) const;
  // Fills ranges_ with the bytes of each sample; false if the column has no such part.
  bool locate(Part part, std::size_t number, std::span<const std::int64_t> indices,
              std::span<const SpanTable> spans);
  // Checks blocks_, and removes those that are good.
  void check_blocks();

  const Table& table_;
  const std::atomic<bool>* stopping_;
  std::vector<std::int64_t> rows_;  // of the indices, by an index map
  std::vector<RowPlace> places_;
  std::vector<Range> ranges_;
  std::vector<std::int64_t> blocks_;
  std::vector<char> bad_samples_;
};

}  // namespace fastload
