#include "batch/row_resolver.h"

#include <algorithm>
#include <cerrno>

#include "base/error.h"

namespace fastload {
namespace {

// Samples that is_resident() looks up. Balances a system call for each against missing that a batch
// is cold in part, which the major page faults of its copy report in the end.
constexpr std::size_t kProbes = 32;

}  // namespace

std::string describe(const Column& column, std::int64_t sample) {
  return "field '" + column.name + "' of sample " + std::to_string(sample);
}

void throw_unreadable(const Table& table, const Column& column, std::int64_t sample,
                      std::int32_t file) {
  throw OsError(
      EIO, "cannot read " + describe(column, sample) + ": " + table.files().why_unreadable(file),
      table.files().path(file));
}

const std::byte* RowResolver::base_of(std::int32_t number) {
  const std::byte*& base = bases_[static_cast<std::size_t>(number)];
  if (base != nullptr) return base;
  const Source& source = table_.source(number);
  if (source.file < 0) return base = source.memory.data();
  auto mapping = table_.files().mapping(source.file);
  if (mapping == nullptr) return nullptr;
  base = mapping->bytes().data();
  ranges_.push_back({base, base + mapping->bytes().size()});
  held_.push_back({number, std::move(mapping)});
  return base;
}

void RowResolver::release_surplus() {
  if (held_.size() <= max_mappings_) return;
  for (const HeldMapping& held : held_) bases_[static_cast<std::size_t>(held.source)] = nullptr;
  held_.clear();
  ranges_.clear();
}

std::span<const RowPlace> RowResolver::locate(const Column& column, IndexSpan indices) {
  places_.resize(indices.size());
  table_.group_of(column).locate(indices.rows(), places_);
  return places_;
}

bool RowResolver::resolve_rows(const Column& column, IndexSpan indices) {
  release_surplus();
  const ColumnGroup& group = table_.group_of(column);
  const auto rows = indices.rows();
  rows_.resize(indices.size());
  if (group.shard_count() == 1) {
    const std::byte* base = base_of(column.sources[0]);
    if (base == nullptr) {
      std::fill(rows_.begin(), rows_.end(), nullptr);
      return false;
    }
    const std::byte* const first = base + column.offsets[0];
    const std::int64_t stride = column.row_stride;
    const std::byte** const out = rows_.data();
    for (std::size_t i = 0; i < rows.size(); ++i) out[i] = first + group.row_of(rows[i]) * stride;
    return true;
  }
  locate(column, indices);
  bool all_mapped = true;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const auto shard = static_cast<std::size_t>(places_[i].shard);
    const std::byte* base = base_of(column.sources[shard]);
    all_mapped = all_mapped && base != nullptr;
    rows_[i] = base == nullptr ? nullptr
                               : base + column.offsets[shard] + places_[i].row * column.row_stride;
  }
  return all_mapped;
}

bool RowResolver::is_contiguous(std::int64_t row_bytes) const {
  const std::size_t count = rows_.size();
  if (rows_[count - 1] - rows_[0] != static_cast<std::int64_t>(count - 1) * row_bytes) return false;
  for (std::size_t i = 1; i < count; ++i) {
    if (rows_[i] - rows_[i - 1] != row_bytes) return false;
  }
  return true;
}

// The byte of its source where sample i starts. REQUIRES: places_ are those of the samples.
std::int64_t RowResolver::offset_of(const ColumnSamples& samples, std::size_t i) const {
  const Column& column = samples.column;
  const std::int64_t row = samples.is_ragged() ? samples.spans.begins[i] : places_[i].row;
  return column.offsets[static_cast<std::size_t>(places_[i].shard)] + row * column.row_stride;
}

bool RowResolver::resolve_runs(const ColumnSamples& samples, const Padding* padding,
                               std::byte* out) {
  release_surplus();
  return find_runs(samples, padding, out);
}

bool RowResolver::find_runs(const ColumnSamples& samples, const Padding* padding, std::byte* out) {
  const Column& column = samples.column;
  const Spans& spans = samples.spans;
  const std::int64_t row_bytes = column.delivered_bytes();
  locate(column, samples.indices);
  runs_.clear();
  origins_.clear();
  bool all_mapped = true;
  std::int32_t last_shard = -1;
  std::int64_t last_end = 0;   // in the source
  std::int64_t last_out = -1;  // in `out`, in rows
  for (std::size_t i = 0; i < samples.count(); ++i) {
    const std::size_t bytes = samples.bytes(i);
    if (bytes == 0) continue;
    const std::int64_t offset = offset_of(samples, i);
    std::int64_t before = static_cast<std::int64_t>(i);  // rows in front of it in `out`
    if (padding != nullptr) {
      before *= padding->length;
    } else if (samples.is_ragged()) {
      before = spans.offsets[i] - spans.offsets[0];
    }
    if (places_[i].shard == last_shard && offset == last_end && before == last_out) {
      runs_.back().bytes += bytes;
    } else {
      const std::byte* base = base_of(column.sources[static_cast<std::size_t>(places_[i].shard)]);
      all_mapped = all_mapped && base != nullptr;
      runs_.push_back({base == nullptr ? nullptr : base + offset,
                       out == nullptr ? nullptr : out + before * row_bytes, bytes});
      origins_.push_back({i, offset});
    }
    last_shard = places_[i].shard;
    last_end = offset + static_cast<std::int64_t>(bytes);
    last_out = before + samples.rows(i);
  }
  return all_mapped;
}

std::int32_t RowResolver::file(const Column& column, std::size_t run) const {
  const auto shard = static_cast<std::size_t>(places_[origins_[run].sample].shard);
  return table_.source(column.sources[shard]).file;
}

std::int64_t RowResolver::index_at(const ColumnSamples& samples, std::size_t run,
                                   std::size_t at) const {
  std::size_t i = origins_[run].sample;
  while (i + 1 < samples.count() && at >= samples.bytes(i)) at -= samples.bytes(i++);
  return samples.indices[i];
}

void RowResolver::throw_fault(const ColumnSamples& samples, const std::byte* fault) {
  find_runs(samples, nullptr, nullptr);
  std::size_t run = 0;
  const auto holds = [&](const Run& r) { return r.from <= fault && fault < r.from + r.bytes; };
  while (run + 1 < runs_.size() && !holds(runs_[run])) ++run;
  const auto at = static_cast<std::size_t>(fault - runs_[run].from);
  throw_unreadable(table_, samples.column, index_at(samples, run, at), file(samples.column, run));
}

void RowResolver::will_need(const ColumnSamples& samples) {
  if (samples.column.strided() || samples.column.row_bytes == 0) return;
  resolve_runs(samples, nullptr, nullptr);
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    if (runs_[run].from == nullptr || file(samples.column, run) < 0) continue;
    Mapping::will_need(runs_[run].from, runs_[run].bytes);
  }
}

bool RowResolver::is_resident(const ColumnSamples& samples) {
  const Column& column = samples.column;
  if (column.strided() || column.row_bytes == 0) return true;
  release_surplus();
  locate(column, samples.indices);
  const std::size_t step = std::max<std::size_t>(1, samples.count() / kProbes);
  for (std::size_t i = 0; i < samples.count(); i += step) {
    const std::int32_t source = column.sources[static_cast<std::size_t>(places_[i].shard)];
    if (samples.bytes(i) == 0 || table_.source(source).file < 0) continue;
    const std::byte* base = base_of(source);
    if (base == nullptr) continue;
    if (!Mapping::resident(base + offset_of(samples, i) + samples.bytes(i) - 1)) return false;
  }
  return true;
}

}  // namespace fastload
