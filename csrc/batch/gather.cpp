#include "batch/gather.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "batch/copy.h"
#include "storage/guard.h"

namespace fastload {
namespace {

// Writes `element` again and again.
void fill(std::byte* out, std::size_t bytes, std::span<const std::byte> element) {
  if (bytes == 0) return;
  if (std::count(element.begin(), element.end(), element[0]) ==
      static_cast<std::ptrdiff_t>(element.size())) {
    std::memset(out, static_cast<int>(element[0]), bytes);
    return;
  }
  std::memcpy(out, element.data(), element.size());
  for (std::size_t done = element.size(); done < bytes;) {  // twice as much each time
    const std::size_t more = std::min(done, bytes - done);
    std::memcpy(out + done, out, more);
    done += more;
  }
}

}  // namespace

void normalise_booleans(std::byte* data, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) data[i] = std::byte{data[i] != std::byte{0}};
}

// Runs `copy`, which reads addresses that the resolver found for `samples`. It may be left in the
// middle, so it must own nothing.
template <class Copy>
void Gatherer::copy_guarded(const ColumnSamples& samples, const Copy& copy) {
  const auto ranges = resolver_.mapped_ranges();
  if (ranges.empty()) return copy();
  const std::byte* fault = guarded(ranges, copy);
  if (fault != nullptr) resolver_.throw_fault(samples, fault);
}

// Whether rows are to be read by pread although all of them are mapped.
bool Gatherer::reads_by_pread(const Column& column, Reading reading) const {
  return reading == Reading::kCold && column.row_bytes < kSmallRowBytes &&
         !resolver_.mapped_ranges().empty() && !resolver_.is_contiguous(column.row_bytes);
}

void Gatherer::gather(const Column& column, IndexSpan indices, std::byte* out, Reading reading) {
  if (indices.empty() || column.row_bytes == 0) return;
  if (column.stored != Stored::kAsDelivered) {
    return gather_runs({column, indices}, nullptr, out, reading);
  }
  if (column.strided()) {
    gather_strided(column, indices, out);
  } else if (!resolver_.resolve_rows(column, indices)) {
    reader_.read_rows(column, indices, out);
  } else if (!reads_by_pread(column, reading) || !reader_.try_read_rows(column, indices, out)) {
    copy_rows(column, indices, out);
  }
  if (column.boolean) {
    normalise_booleans(out, indices.size() * static_cast<std::size_t>(column.row_bytes));
  }
}

void Gatherer::copy_rows(const Column& column, IndexSpan indices, std::byte* out) {
  const CopyKernel& kernel = copy_kernel();
  const std::byte* const* rows = resolver_.rows().data();
  std::size_t count = indices.size();
  auto row_bytes = static_cast<std::size_t>(column.row_bytes);
  if (resolver_.is_contiguous(column.row_bytes)) {
    row_bytes *= count;
    count = 1;
  }
  copy_guarded({column, indices}, [=] { kernel.copy_rows(out, rows, count, row_bytes); });
}

// Copies the rows of one shard after another, since each shard has its own strides.
void Gatherer::gather_strided(const Column& column, IndexSpan indices, std::byte* out) {
  const auto places = resolver_.locate(column, indices);
  const auto row_bytes = static_cast<std::size_t>(column.row_bytes);
  by_shard_.resize(indices.size());
  std::iota(by_shard_.begin(), by_shard_.end(), std::size_t{0});
  if (column.strides.size() > 1) {
    std::stable_sort(by_shard_.begin(), by_shard_.end(), [&](std::size_t a, std::size_t b) {
      return places[a].shard < places[b].shard;
    });
  }
  for (std::size_t first = 0; first < by_shard_.size();) {
    const std::int32_t number = places[by_shard_[first]].shard;
    const auto shard = static_cast<std::size_t>(number);
    const RowStrides& strides = column.strides[shard];
    const std::byte* base =
        table_.source(column.sources[shard]).memory.data() + column.offsets[shard];
    strided_.clear();
    for (; first < by_shard_.size() && places[by_shard_[first]].shard == number; ++first) {
      const std::size_t i = by_shard_[first];
      strided_.push_back({base + places[i].row * strides.row, out + i * row_bytes});
    }
    copy_strided(strided_, strides);
  }
}

void Gatherer::read_spans(const Column& column, IndexSpan indices, SpanTable& out,
                          Reading reading) {
  const Bounds& bounds = *column.bounds;
  const std::size_t count = indices.size();
  bounds_.resize(2 * count);
  gather(bounds.column, indices, reinterpret_cast<std::byte*>(bounds_.data()), reading);
  const auto places = resolver_.locate(column, indices);
  out.begins.resize(count);
  out.offsets.resize(count + 1);
  out.offsets[0] = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t begin = bounds_[2 * i];
    const std::int64_t end = bounds_[2 * i + 1];
    const auto shard = static_cast<std::size_t>(places[i].shard);
    if (begin < 0 || begin > end || end > bounds.totals[shard]) {
      throw FormatError(describe(column, indices[i]) + ": " +
                        table_.source_name(bounds.column.sources[shard]) + " puts it at elements " +
                        std::to_string(begin) + " to " + std::to_string(end) + " of " +
                        std::to_string(bounds.totals[shard]));
    }
    out.begins[i] = begin;
    out.offsets[i + 1] = checked_add(out.offsets[i], end - begin);
  }
}

void Gatherer::gather_ragged(const Column& column, IndexSpan indices, const Spans& spans,
                             const Padding* padding, std::byte* out, Reading reading) {
  if (indices.empty() || column.row_bytes == 0) return;
  gather_runs({column, indices, spans}, padding, out, reading);
  const std::int64_t row_bytes = column.delivered_bytes();
  auto bytes = static_cast<std::size_t>(spans.total() * row_bytes);
  if (padding != nullptr) {
    const auto sample_bytes = static_cast<std::size_t>(padding->length * row_bytes);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const auto used = static_cast<std::size_t>(spans.length(i) * row_bytes);
      fill(out + i * sample_bytes + used, sample_bytes - used, padding->element);
    }
    bytes = indices.size() * sample_bytes;
  }
  if (column.boolean) normalise_booleans(out, bytes);
}

void Gatherer::gather_runs(const ColumnSamples& samples, const Padding* padding, std::byte* out,
                           Reading reading) {
  const bool all_mapped = resolver_.resolve_runs(samples, padding, out);
  const bool is_cold = reading == Reading::kCold;
  copy_runs(samples,
            all_mapped && !is_cold ? resolver_.runs() : reader_.read_runs(samples, is_cold));
}

void Gatherer::copy_runs(const ColumnSamples& samples, std::span<const Run> runs) {
  if (runs.empty()) return;
  const CopyRuns copy = copy_kernel().runs_of(samples.column.stored);
  copy_guarded(samples, [=] { copy(runs); });
}

void Gatherer::gather_images(const Column& column, IndexSpan indices, const ImageDelivery& images,
                             std::byte* out, Reading reading) {
  if (indices.empty() || images.delivered_bytes() == 0) return;
  windows_.clear();
  for (std::int64_t draw : indices.draws()) windows_.push_back(images.window(draw));
  scratch_.resize(images.plan->scratch_bytes(images.shape));
  if (column.row_bytes == 0) {  // nothing but padding
    chunk_rows_.assign(indices.size(), nullptr);
    deliver(images, 0, chunk_rows_, out);
  } else if (column.strided() || !resolver_.resolve_rows(column, indices)) {
    deliver_in_chunks(column, indices, images, out, false);
  } else if (reads_by_pread(column, reading)) {
    deliver_in_chunks(column, indices, images, out, true);
  } else {
    deliver_rows(column, indices, images, 0, out);
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

// Delivers samples from `first` on, whose rows were resolved.
void Gatherer::deliver_rows(const Column& column, IndexSpan indices, const ImageDelivery& images,
                            std::size_t first, std::byte* out) {
  const auto rows = resolver_.rows().subspan(first, indices.size());
  copy_guarded({column, indices}, [&] { deliver(images, first, rows, out); });
}

// Reads some samples at a time, by pread or strides, before they are delivered. Where they cannot
// be read, and `is_mapped`, their mapping serves.
void Gatherer::deliver_in_chunks(const Column& column, IndexSpan indices,
                                 const ImageDelivery& images, std::byte* out, bool is_mapped) {
  const auto row_bytes = static_cast<std::size_t>(column.row_bytes);
  const std::size_t samples = std::clamp<std::size_t>(kReadBytes / row_bytes, 1, indices.size());
  chunk_.resize(samples * row_bytes);
  chunk_rows_.clear();
  for (std::size_t i = 0; i < samples; ++i) chunk_rows_.push_back(chunk_.data() + i * row_bytes);
  for (std::size_t first = 0; first < indices.size(); first += samples) {
    const auto part = indices.subspan(first, std::min(samples, indices.size() - first));
    bool is_read = true;
    if (column.strided()) {
      gather_strided(column, part, chunk_.data());
    } else if (is_mapped) {
      is_read = reader_.try_read_rows(column, part, chunk_.data());
    } else {
      reader_.read_rows(column, part, chunk_.data());
    }
    if (is_read) {
      deliver(images, first, std::span(chunk_rows_).first(part.size()), out);
    } else {
      deliver_rows(column, part, images, first, out);
    }
    out += part.size() * static_cast<std::size_t>(images.delivered_bytes());
  }
}

}  // namespace fastload
