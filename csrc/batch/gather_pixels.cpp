// The part of Gatherer for images and numbers that change on the way.
#include <algorithm>

#include "batch/gather.h"

namespace fastload {
namespace {

// So much is read by system calls before it is delivered, at least one sample: it stays in the
// cache.
constexpr std::size_t kReadBytes = 64 << 10;

}  // namespace

void Gatherer::gather_images(const Column& column, IndexSpan indices, const ImageDelivery& images,
                             std::byte* out, Reading reading) {
  if (indices.empty() || images.delivered_bytes() == 0) return;
  forget_many_pins();
  windows_.clear();
  for (std::int64_t draw : indices.draws()) windows_.push_back(images.window(draw));
  scratch_.resize(images.plan->scratch_bytes(images.shape));
  if (column.row_bytes == 0) {  // nothing but padding
    rows_.assign(indices.size(), nullptr);
    deliver(images, 0, rows_, out);
  } else if (column.strided() || !resolve(column, indices)) {
    deliver_read(column, indices, images, out, false);
  } else if (reading == Reading::cold && column.row_bytes < kSmallRowBytes && !ranges_.empty() &&
             !contiguous(column.row_bytes, indices.size())) {
    deliver_read(column, indices, images, out, true);
  } else {
    deliver_mapped(column, indices, images, 0, out);
  }
  if (column.boolean && !images.plan->spec().conversion) {
    normalise_booleans(out, indices.size() * static_cast<std::size_t>(images.delivered_bytes()));
  }
}

void Gatherer::deliver(const ImageDelivery& images, std::size_t first,
                       std::span<const std::byte* const> rows, std::byte* out) {
  const auto windows = std::span(windows_).subspan(first, rows.size());
  deliver_images(*images.plan, images.shape, rows.data(), windows, out, scratch_.data());
}

// Samples from `first` on, whose rows were resolved.
void Gatherer::deliver_mapped(const Column& column, IndexSpan indices, const ImageDelivery& images,
                              std::size_t first, std::byte* out) {
  const auto rows = std::span<const std::byte* const>(rows_).subspan(first, indices.size());
  if (ranges_.empty()) return deliver(images, first, rows, out);
  const std::byte* fault = guarded(ranges_, [&] { deliver(images, first, rows, out); });
  if (fault == nullptr) return;
  std::size_t i = 0;
  const auto holds = [&](const std::byte* row) {
    return row <= fault && fault < row + column.row_bytes;
  };
  while (i + 1 < indices.size() && !holds(rows[i])) ++i;
  throw_unreadable(column, indices[i], source_of(column, indices.rows()[i]).file);
}

// Through system calls, or gathered by strides, some samples at a time; `resolved`: those that
// cannot be read so are mapped.
void Gatherer::deliver_read(const Column& column, IndexSpan indices, const ImageDelivery& images,
                            std::byte* out, bool resolved) {
  const auto row_bytes = static_cast<std::size_t>(column.row_bytes);
  const std::size_t most = std::clamp<std::size_t>(kReadBytes / row_bytes, 1, indices.size());
  unconverted_.resize(most * row_bytes);
  read_.clear();
  for (std::size_t i = 0; i < most; ++i) read_.push_back(unconverted_.data() + i * row_bytes);
  for (std::size_t first = 0; first < indices.size(); first += most) {
    const auto part = indices.subspan(first, std::min(most, indices.size() - first));
    if (column.strided()) {
      gather_strided(column, part, unconverted_.data());
    } else if (!resolved) {
      read_rows(column, part, unconverted_.data());
    } else if (!try_read_rows(column, part, unconverted_.data())) {
      deliver_mapped(column, part, images, first, out);
      out += part.size() * static_cast<std::size_t>(images.delivered_bytes());
      continue;
    }
    deliver(images, first, std::span(read_).first(part.size()), out);
    out += part.size() * static_cast<std::size_t>(images.delivered_bytes());
  }
}

}  // namespace fastload
