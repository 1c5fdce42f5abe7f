#include "storage/strides.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/bytes.h"

namespace fastload {

RowStrides RowStrides::of(std::span<const std::int64_t> shape,
                          std::span<const std::int64_t> strides, std::int64_t item_bytes) {
  if (strides.size() != shape.size() + 1 || item_bytes < 1) {
    throw std::invalid_argument("there must be a stride of the rows and one of each axis, got " +
                                std::to_string(strides.size()) + " for " +
                                std::to_string(shape.size()) + " axes of items of " +
                                std::to_string(item_bytes) + " bytes");
  }
  RowStrides made{strides[0], item_bytes, {}, 0, item_bytes};
  std::int64_t to = item_bytes;
  for (std::size_t i = shape.size(); i-- > 0;) {
    const std::int64_t length = shape[i];
    if (length < 0)
      throw std::invalid_argument("the length of an axis must not be negative, got " +
                                  std::to_string(length));
    if (length != 1) made.axes.push_back({length, strides[i + 1], to});
    to = checked_mul(to, length);
  }
  if (to == 0) return {strides[0], 0, {}, 0, 0};
  for (const Axis& axis : made.axes) {
    const std::int64_t reach = checked_mul(axis.length - 1, axis.from);
    made.low = checked_add(made.low, std::min<std::int64_t>(reach, 0));
    made.high = checked_add(made.high, std::max<std::int64_t>(reach, 0));
  }
  const auto whole = [](const Axis& axis) { return checked_mul(axis.length, axis.from); };
  std::vector<Axis> merged;
  for (const Axis& axis : made.axes) {
    if (merged.empty() && axis.from == made.item_bytes && axis.to == made.item_bytes) {
      made.item_bytes *= axis.length;
    } else if (!merged.empty() && axis.from == whole(merged.back()) &&
               axis.to == merged.back().to * merged.back().length) {
      merged.back().length *= axis.length;
    } else {
      merged.push_back(axis);
    }
  }
  made.axes.assign(merged.rbegin(), merged.rend());
  return made;
}

}  // namespace fastload
