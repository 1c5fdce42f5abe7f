// Options of an engine that do not fit its table.
#include "engine/options.h"

#include <optional>
#include <stdexcept>
#include <string>

#include "fixtures.h"
#include "ragged_fixtures.h"

using namespace fixtures;
using fastload::Conversion;
using fastload::deliveries_of;
using fastload::EngineOptions;
using fastload::ImageDelivery;
using fastload::Number;
using fastload::PadTo;
using fastload::PixelPlan;
using fastload::PixelSpec;

namespace {

// The message of the refusal.
std::string refusal(const Table& table, const EngineOptions& options) {
  return CHECK_THROWS(std::invalid_argument, deliveries_of(table, options));
}

void check_text(const std::string& text, const std::string& expected) {
  if (text != expected) check::fail(__FILE__, __LINE__, "got: " + text);
}

EngineOptions padded(std::int64_t multiple, std::size_t bytes, std::size_t columns = 1) {
  EngineOptions options;
  options.paddings.assign(columns, PadTo{multiple, Bytes(bytes)});
  return options;
}

// Images of 2 x 3 pixels with 3 channels of one byte, delivered as they are stored.
ImageDelivery plain_images() {
  PixelSpec spec;
  spec.channels = 3;
  spec.item_bytes = 1;
  const auto plan = std::make_shared<const PixelPlan>(spec);
  return {plan, plan->shape(2, 3), plan->keys(0, 0)};
}

EngineOptions with_images(const ImageDelivery& images) {
  EngineOptions options;
  options.images = {images};
  return options;
}

}  // namespace

int main() {
  const Folder folder;
  const TestTable fixed(folder, {2}, {{.row_bytes = 4}});
  const RaggedTable ragged(folder, {{1, 2}}, {.element_bytes = 4});

  check::promise("numbers out of range are refused by name and value", [&] {
    const auto of = [&](int workers, std::int64_t depth) {
      return refusal(*fixed.table, {workers, depth});
    };
    check_text(of(-1, 2), "num_workers must be at least 0, got -1");
    check_text(of(1, 0), "depth must be at least 1, got 0");
    check_text(of(1, -5), "depth must be at least 1, got -5");
    check_text(of(1, (std::int64_t{1} << 31) + 1), "depth must be at most 2^31, got 2147483649");
    CHECK_EQUAL(deliveries_of(*fixed.table, {0, std::int64_t{1} << 31}).size(), 1);
  });

  check::promise("paddings that do not fit are refused with what was given", [&] {
    CHECK(deliveries_of(*ragged.table, padded(1, 4))[0].padded);
    check_text(refusal(*ragged.table, padded(0, 4)),
               "field 'text': the padding's multiple must be at least 1, got 0");
    check_text(refusal(*ragged.table, padded(1, 3)),
               "field 'text': the padding must be one element of 4 bytes, got 3 bytes");
    check_text(refusal(*ragged.table, padded(1, 4, 2)),
               "one padding or image per column is needed, or none at all: got 2 for 1 columns");
    check_text(refusal(*fixed.table, padded(1, 4)),
               "field 'field0': only ragged fields can be padded, got a field of fixed size");
  });

  check::promise("images that do not fit are refused with what was given", [&] {
    const Folder other;
    const TestTable images(other, {2}, {{.row_bytes = 18}});
    const TestTable booleans(other, {2}, {{.row_bytes = 18, .boolean = true}});
    CHECK_EQUAL(deliveries_of(*images.table, with_images(plain_images()))[0].row_bytes, 18);
    check_text(refusal(*fixed.table, with_images(plain_images())),
               "field 'field0': its samples have 4 bytes, images of the given shape have 18");
    check_text(refusal(*ragged.table, with_images(plain_images())),
               "field 'text': images must have one size, got a ragged field");
    const auto converted = [](Number stored) {
      PixelSpec spec;
      spec.channels = 3;
      spec.item_bytes = 1;
      spec.conversion = Conversion{};
      spec.conversion->stored = stored;
      spec.conversion->delivered = Number::f32;
      const auto plan = std::make_shared<const PixelPlan>(spec);
      return with_images({plan, plan->shape(2, 3), plan->keys(0, 0)});
    };
    CHECK_EQUAL(deliveries_of(*images.table, converted(Number::u8))[0].row_bytes, 72);
    CHECK_EQUAL(deliveries_of(*booleans.table, converted(Number::boolean))[0].row_bytes, 72);
    check_text(refusal(*images.table, converted(Number::boolean)),
               "field 'field0': only booleans can be read as booleans");
    check_text(refusal(*booleans.table, converted(Number::u8)),
               "field 'field0': booleans must be read as booleans");
  });
}
