#include "engine/options.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace fastload {
namespace {

constexpr std::int64_t kMaxDepth = std::int64_t{1} << 31;  // sums with it cannot overflow

void check_padding(const Delivery& delivery, const std::string& name) {
  const std::string where = "field '" + name + "': ";
  if (!delivery.ragged) {
    throw std::invalid_argument(where +
                                "only ragged fields can be padded, got a field of fixed size");
  }
  const auto& [multiple, element] = delivery.padding;
  if (multiple < 1) {
    throw std::invalid_argument(where + "the padding's multiple must be at least 1, got " +
                                std::to_string(multiple));
  }
  if (std::cmp_not_equal(element.size(), delivery.row_bytes)) {
    throw std::invalid_argument(where + "the padding must be one element of " +
                                std::to_string(delivery.row_bytes) + " bytes, got " +
                                std::to_string(element.size()) + " bytes");
  }
}

void check_images(const ImageDelivery& images, const Column& column) {
  const std::string where = "field '" + column.name + "': ";
  if (column.bounds != nullptr) {
    throw std::invalid_argument(where + "images must have one size, got a ragged field");
  }
  if (column.stored != Stored::kAsDelivered) {
    throw std::invalid_argument(where + "images must be read as stored, got a converted field");
  }
  if (images.stored_bytes() != column.row_bytes) {
    throw std::invalid_argument(where + "its samples have " + std::to_string(column.row_bytes) +
                                " bytes, images of the given shape have " +
                                std::to_string(images.stored_bytes()));
  }
  const auto& conversion = images.plan->spec().conversion;
  if (conversion && (conversion->stored == Number::boolean) != column.boolean) {
    throw std::invalid_argument(where + (column.boolean ? "booleans must be read as booleans"
                                                        : "only booleans can be read as booleans"));
  }
}

void check_options(const Table& table, const EngineOptions& options) {
  if (options.worker_count < 0) {
    throw std::invalid_argument("num_workers must be at least 0, got " +
                                std::to_string(options.worker_count));
  }
  if (options.depth < 1) {
    throw std::invalid_argument("depth must be at least 1, got " + std::to_string(options.depth));
  }
  if (options.depth > kMaxDepth) {
    throw std::invalid_argument("depth must be at most 2^31, got " + std::to_string(options.depth));
  }
  const std::size_t columns = table.columns().size();
  for (std::size_t count : {options.paddings.size(), options.images.size()}) {
    if (count == 0 || count == columns) continue;
    throw std::invalid_argument("one padding or image per column is needed, or none at all: got " +
                                std::to_string(count) + " for " + std::to_string(columns) +
                                " columns");
  }
}

}  // namespace

std::vector<Delivery> deliveries_of(const Table& table, const EngineOptions& options) {
  check_options(table, options);
  const auto columns = table.columns();
  std::vector<Delivery> deliveries;
  std::size_t slot = 0;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    Delivery delivery{columns[c].delivered_bytes(), columns[c].bounds != nullptr};
    if (!options.paddings.empty() && options.paddings[c]) {
      delivery.padded = true;
      delivery.padding = *options.paddings[c];
      check_padding(delivery, columns[c].name);
    }
    if (!options.images.empty() && options.images[c]) {
      const ImageDelivery& images = *options.images[c];
      check_images(images, columns[c]);
      delivery.images = images;
      delivery.row_bytes = images.delivered_bytes();
    }
    delivery.slot = slot;
    slot += delivery.ragged ? 2 : 1;
    deliveries.push_back(std::move(delivery));
  }
  return deliveries;
}

}  // namespace fastload
