#include "batch/gather.h"

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "batch/copy.h"

namespace fastload {

std::string describe(const Column& column, std::int64_t sample) {
  return "field '" + column.name + "' of sample " + std::to_string(sample);
}

void normalise_booleans(std::byte* data, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) data[i] = std::byte{data[i] != std::byte{0}};
}

void Gatherer::gather(const Column& column, IndexSpan indices, std::byte* out, Reading reading) {
  if (indices.empty() || column.row_bytes == 0) return;
  forget_many_pins();
  if (column.stored != Stored::as_delivered) {
    return gather_runs({column, indices, {}}, nullptr, out, reading);
  }
  const auto bytes = indices.size() * static_cast<std::size_t>(column.row_bytes);
  if (column.strided()) {
    gather_strided(column, indices, out);
    if (column.boolean) normalise_booleans(out, bytes);
    return;
  }
  const bool all_mapped = resolve(column, indices);
  const bool by_pread = reading == Reading::cold && column.row_bytes < kSmallRowBytes &&
                        !ranges_.empty() && !contiguous(column.row_bytes, indices.size());
  if (!all_mapped) {
    read_rows(column, indices, out);
  } else if (!by_pread || !try_read_rows(column, indices, out)) {
    copy_mapped(column, indices, out);
  }
  if (column.boolean) normalise_booleans(out, bytes);
}

void Gatherer::will_need(const Column& column, IndexSpan indices, const Spans& spans) {
  if (column.row_bytes == 0 || indices.empty() || column.strided()) return;
  forget_many_pins();
  if (column.bounds != nullptr) return runs_will_need({column, indices, spans});
  resolve(column, indices);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (rows_[i] == nullptr || source_of(column, indices.rows()[i]).file < 0) continue;
    Mapping::will_need(rows_[i], static_cast<std::size_t>(column.row_bytes));
  }
}

bool Gatherer::resident(const Column& column, IndexSpan indices, const Spans& spans) {
  if (column.row_bytes == 0 || indices.empty() || column.strided()) return true;
  forget_many_pins();
  if (column.bounds != nullptr) return runs_resident({column, indices, spans});
  resolve(column, indices);
  const std::size_t step = std::max<std::size_t>(1, indices.size() / kProbes);
  for (std::size_t i = 0; i < indices.size(); i += step) {
    if (rows_[i] == nullptr || source_of(column, indices.rows()[i]).file < 0) continue;
    if (!Mapping::resident(rows_[i] + column.row_bytes - 1)) return false;
  }
  return true;
}

std::span<const std::byte* const> Gatherer::addresses(const Column& column, IndexSpan indices) {
  forget_many_pins();
  resolve(column, indices);
  return rows_;
}

const std::byte* Gatherer::base_of(std::int32_t number) {
  const std::byte*& base = bases_[static_cast<std::size_t>(number)];
  if (base != nullptr) return base;
  const Source& source = table_.source(number);
  if (source.file < 0) return base = source.memory.data();
  auto mapping = table_.files().mapping(source.file);
  if (mapping == nullptr) return nullptr;
  base = mapping->bytes().data();
  ranges_.push_back({base, base + mapping->bytes().size()});
  pins_.push_back({number, std::move(mapping)});
  return base;
}

void Gatherer::forget_many_pins() {
  if (pins_.size() <= max_pins_) return;
  for (const Pin& pin : pins_) bases_[static_cast<std::size_t>(pin.source)] = nullptr;
  pins_.clear();
  ranges_.clear();
}

bool Gatherer::resolve(const Column& column, IndexSpan indices) {
  const ColumnGroup& group = table_.group_of(column);
  const auto rows = indices.rows();
  rows_.resize(indices.size());
  if (group.shard_count() == 1) {
    const std::byte* base = base_of(column.sources[0]);
    for (std::size_t i = 0; base != nullptr && i < indices.size(); ++i) {
      rows_[i] = base + column.offsets[0] + group.row_of(rows[i]) * column.row_stride;
    }
    if (base == nullptr) std::fill(rows_.begin(), rows_.end(), nullptr);
    return base != nullptr;
  }
  places_.resize(indices.size());
  group.locate(rows, places_);
  bool all = true;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const auto shard = static_cast<std::size_t>(places_[i].shard);
    const std::byte* base = base_of(column.sources[shard]);
    all = all && base != nullptr;
    rows_[i] = base == nullptr ? nullptr
                               : base + column.offsets[shard] + places_[i].row * column.row_stride;
  }
  return all;
}

const Source& Gatherer::source_of(const Column& column, std::int64_t row) const {
  RowPlace place = {};
  table_.group_of(column).locate({&row, 1}, {&place, 1});
  return table_.source(column.sources[static_cast<std::size_t>(place.shard)]);
}

bool Gatherer::contiguous(std::int64_t row_bytes, std::size_t count) const {
  if (rows_[count - 1] - rows_[0] != static_cast<std::int64_t>(count - 1) * row_bytes) return false;
  for (std::size_t i = 1; i < count; ++i) {
    if (rows_[i] - rows_[i - 1] != row_bytes) return false;
  }
  return true;
}

void Gatherer::copy_mapped(const Column& column, IndexSpan indices, std::byte* out) {
  const CopyKernel& kernel = copy_kernel();
  const std::byte* const* rows = rows_.data();
  std::size_t count = indices.size();
  auto row_bytes = static_cast<std::size_t>(column.row_bytes);
  if (contiguous(column.row_bytes, count)) {
    row_bytes *= count;
    count = 1;
  }
  if (ranges_.empty()) return kernel.copy_rows(out, rows, count, row_bytes);
  const std::byte* fault = guarded(ranges_, [=] { kernel.copy_rows(out, rows, count, row_bytes); });
  if (fault != nullptr) throw_fault(column, indices, fault);
}

// The rows of one shard after another, for each shard has strides of its own.
void Gatherer::gather_strided(const Column& column, IndexSpan indices, std::byte* out) {
  const ColumnGroup& group = table_.group_of(column);
  const auto row_bytes = static_cast<std::size_t>(column.row_bytes);
  places_.resize(indices.size());
  group.locate(indices.rows(), places_);
  by_shard_.resize(indices.size());
  std::iota(by_shard_.begin(), by_shard_.end(), std::size_t{0});
  if (group.shard_count() > 1) {
    std::stable_sort(by_shard_.begin(), by_shard_.end(), [&](std::size_t a, std::size_t b) {
      return places_[a].shard < places_[b].shard;
    });
  }
  for (std::size_t first = 0; first < by_shard_.size();) {
    const std::int32_t number = places_[by_shard_[first]].shard;
    const auto shard = static_cast<std::size_t>(number);
    const RowStrides& strides = column.strides[shard];
    const std::byte* base = base_of(column.sources[shard]) + column.offsets[shard];
    strided_.clear();
    for (; first < by_shard_.size() && places_[by_shard_[first]].shard == number; ++first) {
      const std::size_t i = by_shard_[first];
      strided_.push_back({base + places_[i].row * strides.row, out + i * row_bytes});
    }
    copy_strided(strided_, strides);
  }
}

void Gatherer::throw_fault(const Column& column, IndexSpan indices, const std::byte* fault) const {
  std::size_t i = 0;
  const auto holds = [&](const std::byte* row) {
    return row <= fault && fault < row + column.row_bytes;
  };
  while (i + 1 < indices.size() && !holds(rows_[i])) ++i;
  throw_unreadable(column, indices[i], source_of(column, indices.rows()[i]).file);
}

void Gatherer::throw_unreadable(const Column& column, std::int64_t sample,
                                std::int32_t file) const {
  const std::string& path = table_.files().path(file);
  throw OsError(
      EIO, "cannot read " + describe(column, sample) + ": " + table_.files().why_unreadable(file),
      path);
}

// Row by row through system calls, neighbouring rows together.
void Gatherer::read_rows(const Column& column, IndexSpan indices, std::byte* out) {
  places_.resize(indices.size());
  table_.group_of(column).locate(indices.rows(), places_);
  for (std::size_t first = 0; first < indices.size();) {
    std::size_t end = first + 1;
    if (column.row_stride == column.row_bytes) {
      while (end < indices.size() && places_[end].shard == places_[first].shard &&
             places_[end].row == places_[end - 1].row + 1) {
        ++end;
      }
    }
    read_run(column, places_[first], indices.subspan(first, end - first),
             out + first * static_cast<std::size_t>(column.row_bytes));
    first = end;
  }
}

// False where a file cannot be opened again (it was removed, replaced or cut short, or there are
// too many open files): its mapping serves the rows that are left.
bool Gatherer::try_read_rows(const Column& column, IndexSpan indices, std::byte* out) {
  try {
    read_rows(column, indices, out);
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

// Reads rows that lie side by side from `place` on.
void Gatherer::read_run(const Column& column, const RowPlace& place, IndexSpan samples,
                        std::byte* out) {
  const auto shard = static_cast<std::size_t>(place.shard);
  const Source& source = table_.source(column.sources[shard]);
  const std::int64_t offset = column.offsets[shard] + place.row * column.row_stride;
  const std::size_t bytes = samples.size() * static_cast<std::size_t>(column.row_bytes);
  if (source.file < 0) {
    std::copy_n(source.memory.data() + offset, bytes, out);
    return;
  }
  const std::size_t done = read_file(column, samples[0], source.file, offset, {out, bytes});
  if (done == bytes) return;
  throw_unreadable(column, samples[done / static_cast<std::size_t>(column.row_bytes)], source.file);
}

// Returns the bytes read: fewer at the end of the file.
std::size_t Gatherer::read_file(const Column& column, std::int64_t sample, std::int32_t file,
                                std::int64_t offset, std::span<std::byte> out) const {
  const auto descriptor = table_.files().descriptor(file);
  try {
    return descriptor->read_at(offset, out);
  } catch (const OsError& error) {
    throw OsError(error.code(), std::string(error.what()) + " (" + describe(column, sample) + ")",
                  error.path());
  }
}

}  // namespace fastload
