#include "batch/copy_strided.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"

using namespace fastload;

namespace {

using Numbers = std::vector<std::int64_t>;

std::int64_t product(const Numbers& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{1}, std::multiplies<>());
}

// The place of item `number` of a row, axis by axis.
std::int64_t offset_of(std::int64_t number, const Numbers& shape, const Numbers& strides) {
  std::int64_t offset = 0;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    offset += number % shape[axis] * strides[axis + 1];
    number /= shape[axis];
  }
  return offset;
}

// Rows at random places of memory that ends where the rows do; compared item by item.
void check_copy(const Numbers& shape, const Numbers& strides, std::int64_t item_bytes,
                std::int64_t row_count, std::size_t rows_copied, unsigned seed) {
  const RowStrides made = RowStrides::of(shape, strides, item_bytes);
  const std::int64_t reach = (row_count - 1) * strides[0];
  const std::int64_t first = -(made.low + std::min<std::int64_t>(reach, 0));
  const std::int64_t size = first + made.high + std::max<std::int64_t>(reach, 0);
  std::mt19937_64 random(seed);
  std::vector<std::byte> memory(static_cast<std::size_t>(size));
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
  const std::int64_t row_bytes = product(shape) * item_bytes;
  constexpr std::size_t kCanary = 64;
  std::vector<std::byte> out(rows_copied * static_cast<std::size_t>(row_bytes) + 2 * kCanary,
                             std::byte{0xA5});
  std::vector<StridedRow> rows;
  for (std::size_t i = 0; i < rows_copied; ++i) {
    const auto row = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(row_count));
    rows.push_back({memory.data() + first + row * strides[0],
                    out.data() + kCanary + i * static_cast<std::size_t>(row_bytes)});
  }
  copy_strided(rows, made);
  const std::string what = std::to_string(shape.size()) + " axes, items of " +
                           std::to_string(item_bytes) + ", " + std::to_string(rows_copied);
  for (const StridedRow& row : rows) {
    for (std::int64_t i = 0; i < product(shape); ++i) {
      const std::byte* from = row.from + offset_of(i, shape, strides);
      if (!std::equal(from, from + item_bytes, row.out + i * item_bytes)) {
        check::fail(__FILE__, __LINE__, what + ": item " + std::to_string(i));
      }
    }
  }
  const auto untouched = [](std::byte byte) { return byte == std::byte{0xA5}; };
  CHECK(std::all_of(out.begin(), out.begin() + kCanary, untouched));
  CHECK(std::all_of(out.end() - kCanary, out.end(), untouched));
}

// The strides of an array (rows, *shape) whose axes lie in memory in this order, the slowest first.
Numbers strides_of(std::int64_t rows, const Numbers& shape, const std::vector<std::size_t>& order,
                   std::int64_t item_bytes) {
  Numbers lengths{rows};
  lengths.insert(lengths.end(), shape.begin(), shape.end());
  Numbers strides(lengths.size());
  std::int64_t at = item_bytes;
  for (std::size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = at;
    at *= lengths[order[i]];
  }
  return strides;
}

}  // namespace

int main() {
  check::promise("any order of the axes, any direction, any item, any number of rows", [] {
    unsigned seed = 0;
    for (const Numbers& shape : {Numbers{}, Numbers{5}, Numbers{3, 4}, Numbers{2, 3, 5}}) {
      std::vector<std::size_t> order(shape.size() + 1);
      std::iota(order.begin(), order.end(), std::size_t{0});
      do {
        for (std::int64_t item : {1, 2, 3, 4, 8, 12, 16, 100}) {
          for (std::int64_t rows : {1, 7, 3000}) {
            if (rows == 3000 && (item > 8 || shape.size() > 2)) continue;
            const Numbers strides = strides_of(rows, shape, order, item);
            for (std::size_t copied : {0, 1, 15, 130, 300}) {
              check_copy(shape, strides, item, rows, copied, ++seed);
            }
            Numbers backwards = strides;
            for (std::int64_t& stride : backwards) stride = -stride;
            check_copy(shape, backwards, item, rows, 20, ++seed);
            Numbers sparse = strides;
            for (std::int64_t& stride : sparse) stride *= 3;
            check_copy(shape, sparse, item, rows, 20, ++seed);
          }
        }
      } while (std::next_permutation(order.begin(), order.end()));
    }
  });

  check::promise("a stride of 0 repeats, and rows may overlap", [] {
    check_copy({4, 3}, {0, 0, 8}, 8, 5, 9, 1);
    check_copy({4, 3}, {24, 0, 0}, 8, 5, 9, 2);
    check_copy({6}, {4, 8}, 4, 50, 70, 3);
  });

  check::promise("what is dense becomes one item", [] {
    const Numbers shape{4, 3, 2};
    CHECK_EQUAL(RowStrides::of(shape, Numbers{-96, 24, 8, 4}, 4).item_bytes, 96);
    CHECK(RowStrides::of(shape, Numbers{-96, 24, 8, 4}, 4).axes.empty());
    const RowStrides pairs = RowStrides::of(shape, Numbers{4, 48, 16, 4}, 4);
    CHECK_EQUAL(pairs.item_bytes, 8);
    CHECK_EQUAL(pairs.axes.size(), 1);  // 4 * 3 items, 16 bytes apart
    CHECK_EQUAL(pairs.axes[0].length, 12);
    CHECK_EQUAL(RowStrides::of(shape, Numbers{4, -100, 16, 4}, 4).low, -300);
    CHECK_EQUAL(RowStrides::of(Numbers{4, 0}, Numbers{4, 4, 4}, 4).item_bytes, 0);
    CHECK(RowStrides::of(Numbers{1, 1}, Numbers{4, 999, -999}, 4).axes.empty());
  });

  check::promise("strides that do not fit the shape are refused", [] {
    CHECK_THROWS(std::invalid_argument, RowStrides::of(Numbers{2}, Numbers{4}, 4));
    CHECK_THROWS(std::invalid_argument, RowStrides::of(Numbers{-2}, Numbers{4, 4}, 4));
    CHECK_THROWS(std::invalid_argument, RowStrides::of(Numbers{2}, Numbers{4, 4}, 0));
    CHECK_THROWS(std::overflow_error, RowStrides::of(Numbers{INT64_MAX}, Numbers{4, 4}, 4));
    CHECK_THROWS(std::overflow_error, RowStrides::of(Numbers{9}, Numbers{4, INT64_MAX / 4}, 4));
  });
}
