#include "batch/copy_strided.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "batch/stream.h"

namespace fastload {
namespace {

// A row is near if it has at least one byte in each line that it spans, or spans at most kNearBytes
// (one page). It is copied as a whole. Of any other row each item costs a cache line and a page.
// Then an item is copied for all rows before the next one, so that the lines of many rows are
// fetched in parallel and the pages of one item stay in the TLB. 2 M x 60 float32 in Fortran order,
// batches of 1024, one thread: 2.2 million rows/s item by item, 1.2 million row by row.
constexpr std::int64_t kNearBytes = 4096;
// Rows ahead at which an item is fetched into the second cache, and from there into the first: more
// lines can be on their way to the second one. One stage alone is 8 % slower.
constexpr std::size_t kFarAhead = 128;
constexpr std::size_t kNearAhead = 16;
constexpr std::size_t kRowsAtOnceAhead = 8;  // of rows that are copied at once

bool is_near(const RowStrides& strides) {
  std::int64_t row_bytes = strides.item_bytes;
  for (const Axis& axis : strides.axes) row_bytes *= axis.length;
  const std::int64_t span = strides.high - strides.low;
  return span <= kNearBytes || span / static_cast<std::int64_t>(kLine) <= row_bytes;
}

// Steps through the items of a row, from the last axis to the first.
class Walk {
 public:
  // `axes`: those to step through; they outlive this.
  explicit Walk(std::span<const Axis> axes) : axes_(axes), at_(axes.size(), 0) {}

  std::int64_t from() const { return from_; }
  std::int64_t to() const { return to_; }
  // Goes to the next item; behind the last one it returns false and is at the first one again.
  bool next() {
    for (std::size_t i = axes_.size(); i-- > 0;) {
      const Axis& axis = axes_[i];
      from_ += axis.from;
      to_ += axis.to;
      if (++at_[i] < axis.length) return true;
      from_ -= axis.from * axis.length;
      to_ -= axis.to * axis.length;
      at_[i] = 0;
    }
    return false;
  }

 private:
  std::span<const Axis> axes_;
  std::vector<std::int64_t> at_;
  std::int64_t from_ = 0;
  std::int64_t to_ = 0;
};

// Copies an item of kBytes bytes, or of `bytes` if kBytes is 0.
template <std::size_t kBytes>
inline void copy_item(std::byte* out, const std::byte* from, std::size_t bytes) {
  std::memcpy(out, from, kBytes != 0 ? kBytes : bytes);
}

template <std::size_t kBytes>
void copy_by_rows(std::span<const StridedRow> rows, const RowStrides& strides) {
  const auto bytes = static_cast<std::size_t>(strides.item_bytes);
  const auto span = static_cast<std::size_t>(strides.high - strides.low);
  // The longest axis in the innermost loop.
  std::vector<Axis> axes(strides.axes);
  std::stable_sort(axes.begin(), axes.end(),
                   [](const Axis& a, const Axis& b) { return a.length < b.length; });
  Axis last{1, 0, 0};
  if (!axes.empty()) {
    last = axes.back();
    axes.pop_back();
  }
  Walk outer(axes);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i + kRowsAtOnceAhead < rows.size()) {
      prefetch_row(rows[i + kRowsAtOnceAhead].from + strides.low, span);
    }
    do {
      const std::byte* from = rows[i].from + outer.from();
      std::byte* out = rows[i].out + outer.to();
      for (std::int64_t n = 0; n < last.length; ++n, from += last.from, out += last.to) {
        copy_item<kBytes>(out, from, bytes);
      }
    } while (outer.next());
  }
}

template <std::size_t kBytes>
void copy_by_items(std::span<const StridedRow> rows, const RowStrides& strides) {
  const auto bytes = static_cast<std::size_t>(strides.item_bytes);
  const std::size_t count = rows.size();
  const std::size_t far = std::min(kFarAhead, count);
  const std::size_t near = std::min(kNearAhead, count);
  Walk item(strides.axes);
  Walk following(strides.axes);
  bool more = true;
  while (more) {
    more = following.next();
    const std::int64_t from = item.from();
    const std::int64_t to = item.to();
    const std::int64_t next = following.from();
    // Behind the last row the rows of the next item follow.
    const auto ahead = [&](std::size_t i) {
      return i < count ? rows[i].from + from : rows[i - count].from + next;
    };
    for (std::size_t i = 0; i < count; ++i) {
      __builtin_prefetch(ahead(i + far), 0, 2);
      __builtin_prefetch(ahead(i + near), 0, 3);
      copy_item<kBytes>(rows[i].out + to, rows[i].from + from, bytes);
    }
    item.next();
  }
}

template <std::size_t kBytes>
void copy(std::span<const StridedRow> rows, const RowStrides& strides) {
  (is_near(strides) ? copy_by_rows<kBytes> : copy_by_items<kBytes>)(rows, strides);
}

}  // namespace

void copy_strided(std::span<const StridedRow> rows, const RowStrides& strides) {
  if (rows.empty() || strides.item_bytes == 0) return;
  switch (strides.item_bytes) {
    case 1:
      return copy<1>(rows, strides);
    case 2:
      return copy<2>(rows, strides);
    case 4:
      return copy<4>(rows, strides);
    case 8:
      return copy<8>(rows, strides);
    case 16:
      return copy<16>(rows, strides);
    default:
      return copy<0>(rows, strides);
  }
}

}  // namespace fastload
