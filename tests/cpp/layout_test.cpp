#include "batch/layout.h"

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "base/bytes.h"
#include "check.h"

using namespace fastload;

namespace {

BatchLayout layout_of(const std::vector<std::int64_t>& row_bytes, std::int64_t samples) {
  BatchLayout layout{{1, 2, 3}, {4}};  // what an earlier batch left
  std::vector<Delivery> columns;
  for (std::int64_t bytes : row_bytes) columns.push_back({bytes});
  layout_batch(columns, samples, std::vector<SpanTable>(row_bytes.size()), layout);
  return layout;
}

}  // namespace

int main() {
  check::promise("a field takes row bytes times samples, none of them or empty rows too", [] {
    const std::vector<std::int64_t> rows{0, 1, 3, 257, 3072, 150528};
    for (std::int64_t samples : {0, 1, 2, 255, 256}) {
      const BatchLayout layout = layout_of(rows, samples);
      CHECK_EQUAL(layout.slot_bytes.size(), rows.size());
      std::int64_t total = 0;
      for (std::size_t c = 0; c < rows.size(); ++c) {
        CHECK_EQUAL(layout.slot_bytes[c], rows[c] * samples);
        total += rows[c] * samples;
      }
      CHECK_EQUAL(layout.total_bytes(), total);
    }
    CHECK_EQUAL(layout_of({}, 7).total_bytes(), 0);
  });

  check::promise("a batch that exceeds 2^63 bytes is an error, not a wrap", [] {
    const std::vector<std::int64_t> rows{std::int64_t{1} << 40};
    CHECK_THROWS(std::overflow_error, layout_of(rows, std::int64_t{1} << 30));
  });

  check::promise("checked sums and products", [] {
    CHECK_EQUAL(checked_add(INT64_MAX - 1, 1), INT64_MAX);
    CHECK_THROWS(std::overflow_error, checked_add(INT64_MAX, 1));
    CHECK_THROWS(std::overflow_error, checked_mul(INT64_MAX / 2 + 1, 2));
    CHECK_EQUAL(checked_mul(INT64_MAX / 2, 2), INT64_MAX - 1);
    CHECK_EQUAL(align_up(0, 256), 0);
    CHECK_EQUAL(align_up(1, 256), 256);
    CHECK_EQUAL(align_up(256, 256), 256);
  });
}
