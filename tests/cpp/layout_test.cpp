#include "batch/layout.h"

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "base/bytes.h"
#include "check.h"

using namespace fastload;

namespace {

using Bytes = std::vector<std::byte>;

BatchLayout layout_of(const std::vector<std::int64_t>& row_bytes, std::int64_t samples) {
  BatchLayout layout{{1, 2, 3}, {4}, {5}};  // what an earlier batch left
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

  check::promise(
      "a ragged field has two arrays: values and offsets, or padded values and lengths", [] {
        const std::vector<SpanTable> spans{
            {}, {{5, 0, 9}, {0, 3, 3, 10}}, {{1, 2, 3}, {0, 0, 9, 11}}};
        std::vector<Delivery> columns{{8}, {4, true}, {2, true, true, {8, Bytes(2)}}};
        BatchLayout layout;
        layout_batch(columns, 3, spans, layout);
        CHECK((layout.slot_bytes == std::vector<std::size_t>{24, 40, 32, 3 * 16 * 2, 24}));
        CHECK((layout.padded_lengths == std::vector<std::int64_t>{0, 0, 16}));
        for (std::size_t slot = 0; slot < layout.slot_bytes.size(); ++slot) {
          CHECK(layout.slot_rooms[slot] >= layout.slot_bytes[slot]);
        }
        std::vector<std::int64_t> out(4);
        write_spans(columns[1], spans[1].spans(), reinterpret_cast<std::byte*>(out.data()));
        CHECK((out == std::vector<std::int64_t>{0, 3, 3, 10}));
        write_spans(columns[2], spans[2].spans(), reinterpret_cast<std::byte*>(out.data()));
        CHECK((out == std::vector<std::int64_t>{0, 9, 2, 10}));
      });

  check::promise("without samples, or with empty ones only, there is nothing to pad", [] {
    std::vector<Delivery> columns{{2, true, true, {8, Bytes(2)}}, {2, true}};
    for (std::int64_t samples : {0, 2}) {
      const std::vector<std::int64_t> zeros(static_cast<std::size_t>(samples));
      std::vector<std::int64_t> offsets(static_cast<std::size_t>(samples) + 1);
      const std::vector<SpanTable> spans(2, SpanTable{zeros, offsets});
      BatchLayout layout;
      layout_batch(columns, samples, spans, layout);
      CHECK_EQUAL(layout.padded_lengths[0], 0);
      CHECK_EQUAL(layout.slot_bytes[0] + layout.slot_bytes[2], 0);
      CHECK_EQUAL(layout.slot_bytes[1], samples * 8);
      CHECK_EQUAL(layout.slot_bytes[3], (samples + 1) * 8);
    }
  });

  check::promise("lengths beyond 2^31 are laid out, impossible ones are an error", [] {
    const std::int64_t many = std::int64_t{1} << 33;
    const std::vector<SpanTable> spans{{{0, 0}, {0, many, many + 1}}};
    BatchLayout layout;
    const std::vector<Delivery> padded{{4, true, true, {1, Bytes(4)}}};
    layout_batch(padded, 2, spans, layout);
    CHECK_EQUAL(layout.slot_bytes[0], 2 * many * 4);
    const std::vector<Delivery> rounded{{4, true, true, {INT64_MAX, Bytes(4)}}};
    CHECK_THROWS(std::overflow_error, layout_batch(rounded, 2, spans, layout));
    const std::vector<Delivery> wide{{std::int64_t{1} << 40, true}};
    CHECK_THROWS(std::overflow_error, layout_batch(wide, 2, spans, layout));
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
