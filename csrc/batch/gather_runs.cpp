// The part of Gatherer for samples of different sizes, and for numbers that are converted.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "batch/gather.h"

namespace fastload {
namespace {

// So much is read by a system call before it is converted: it stays in the cache.
constexpr std::size_t kUnconvertedBytes = 64 << 10;

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

void Gatherer::read_spans(const Column& column, IndexSpan indices, SpanTable& out,
                          Reading reading) {
  const Bounds& bounds = *column.bounds;
  const std::size_t count = indices.size();
  bounds_.resize(2 * count);
  gather(bounds.column, indices, reinterpret_cast<std::byte*>(bounds_.data()), reading);
  places_.resize(count);
  table_.group_of(column).locate(indices.rows(), places_);
  out.begins.resize(count);
  out.offsets.resize(count + 1);
  out.offsets[0] = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t begin = bounds_[2 * i];
    const std::int64_t end = bounds_[2 * i + 1];
    const auto shard = static_cast<std::size_t>(places_[i].shard);
    if (begin < 0 || begin > end || end > bounds.totals[shard]) {
      throw FormatError(describe(column, indices[i]) + ": " +
                        table_.source_name(bounds.column.sources[shard]) +
                        " says that it lies at elements " + std::to_string(begin) + " to " +
                        std::to_string(end) + " of " + std::to_string(bounds.totals[shard]));
    }
    out.begins[i] = begin;
    out.offsets[i + 1] = checked_add(out.offsets[i], end - begin);
  }
}

void Gatherer::gather_ragged(const Column& column, IndexSpan indices, const Spans& spans,
                             const Padding* padding, std::byte* out, Reading reading) {
  if (indices.empty() || column.row_bytes == 0) return;
  forget_many_pins();
  const Samples samples{column, indices, spans};
  gather_runs(samples, padding, out, reading);
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

void Gatherer::gather_runs(const Samples& samples, const Padding* padding, std::byte* out,
                           Reading reading) {
  const bool all_mapped = make_runs(samples, padding, out);
  if (!all_mapped || reading == Reading::cold) read_runs(samples);
  copy_runs(samples);
}

std::span<const Run> Gatherer::runs(const Column& column, IndexSpan indices, const Spans& spans,
                                    std::byte* out) {
  forget_many_pins();
  make_runs({column, indices, spans}, nullptr, out);
  return runs_;
}

bool Gatherer::make_runs(const Samples& samples, const Padding* padding, std::byte* out) {
  const Column& column = samples.column;
  const Spans& spans = samples.spans;
  const std::int64_t row_bytes = column.delivered_bytes();
  places_.resize(samples.indices.size());
  table_.group_of(column).locate(samples.indices.rows(), places_);
  runs_.clear();
  origins_.clear();
  bool all_mapped = true;
  std::int32_t last_shard = -1;
  std::int64_t last_end = 0;   // in the source
  std::int64_t last_out = -1;  // in `out`, in rows
  for (std::size_t i = 0; i < samples.indices.size(); ++i) {
    const std::size_t bytes = samples.bytes(i);
    if (bytes == 0) continue;
    const auto shard = static_cast<std::size_t>(places_[i].shard);
    const std::int64_t row = samples.ragged() ? spans.begins[i] : places_[i].row;
    const std::int64_t offset = column.offsets[shard] + row * column.row_stride;
    std::int64_t before = static_cast<std::int64_t>(i);  // rows in front of it in `out`
    if (padding != nullptr) {
      before *= padding->length;
    } else if (samples.ragged()) {
      before = spans.offsets[i] - spans.offsets[0];
    }
    if (places_[i].shard == last_shard && offset == last_end && before == last_out) {
      runs_.back().bytes += bytes;
    } else {
      const std::byte* base = base_of(column.sources[shard]);
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

void Gatherer::copy_runs(const Samples& samples) {
  const CopyRuns copy = copy_kernel().runs_of(samples.column.stored);
  const std::span<const Run> runs(runs_);
  if (runs.empty()) return;
  if (ranges_.empty()) return copy(runs);
  const std::byte* fault = guarded(ranges_, [=] { copy(runs); });
  if (fault == nullptr) return;
  std::size_t run = 0;
  const auto holds = [&](const Run& r) { return r.from <= fault && fault < r.from + r.bytes; };
  while (run + 1 < runs.size() && !holds(runs[run])) ++run;
  const auto at = static_cast<std::size_t>(fault - runs[run].from);
  throw_unreadable(samples.column, sample_in_run(samples, run, at),
                   file_of_run(samples.column, run));
}

void Gatherer::read_runs(const Samples& samples) {
  std::size_t left = 0;
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    if (runs_[run].from == nullptr) {
      read_file_run(samples, run);
      continue;
    }
    const bool small = runs_[run].bytes < static_cast<std::size_t>(kSmallRowBytes);
    if (small && file_of_run(samples.column, run) >= 0) {
      try {
        read_file_run(samples, run);
        continue;
      } catch (const std::runtime_error&) {  // as in try_read_rows(): what is mapped still serves
      }
    }
    runs_[left] = runs_[run];
    origins_[left++] = origins_[run];
  }
  runs_.resize(left);
  origins_.resize(left);
}

void Gatherer::read_file_run(const Samples& samples, std::size_t number) {
  const Run& run = runs_[number];
  const Column& column = samples.column;
  const std::int64_t sample = samples.indices[origins_[number].first];
  const std::int32_t file = file_of_run(column, number);
  const bool convert = column.stored != Stored::as_delivered;
  const std::size_t most = convert ? kUnconvertedBytes : run.bytes;
  if (convert) unconverted_.resize(std::min(most, run.bytes));
  for (std::size_t done = 0; done < run.bytes;) {
    const std::size_t bytes = std::min(most, run.bytes - done);
    std::byte* out = convert ? unconverted_.data() : run.out;
    const std::int64_t offset = origins_[number].offset + static_cast<std::int64_t>(done);
    const std::size_t count = read_file(column, sample, file, offset, {out, bytes});
    if (count < bytes) {
      throw_unreadable(column, sample_in_run(samples, number, done + count), file);
    }
    if (convert) {
      const auto before = static_cast<std::int64_t>(done) / stored_bytes(column.stored);
      const Run part{out, run.out + before * static_cast<std::int64_t>(sizeof(std::int64_t)),
                     bytes};
      copy_kernel().runs_of(column.stored)({&part, 1});
    }
    done += bytes;
  }
}

void Gatherer::runs_will_need(const Samples& samples) {
  make_runs(samples, nullptr, nullptr);
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    if (runs_[run].from == nullptr || file_of_run(samples.column, run) < 0) continue;
    Mapping::will_need(runs_[run].from, runs_[run].bytes);
  }
}

bool Gatherer::runs_resident(const Samples& samples) {
  make_runs(samples, nullptr, nullptr);
  const std::size_t step = std::max<std::size_t>(1, runs_.size() / kProbes);
  for (std::size_t run = 0; run < runs_.size(); run += step) {
    if (runs_[run].from == nullptr || file_of_run(samples.column, run) < 0) continue;
    if (!Mapping::resident(runs_[run].from + runs_[run].bytes - 1)) return false;
  }
  return true;
}

std::int32_t Gatherer::file_of_run(const Column& column, std::size_t run) const {
  const auto shard = static_cast<std::size_t>(places_[origins_[run].first].shard);
  return table_.source(column.sources[shard]).file;
}

std::int64_t Gatherer::sample_in_run(const Samples& samples, std::size_t run,
                                     std::size_t at) const {
  std::size_t i = origins_[run].first;
  while (i + 1 < samples.indices.size() && at >= samples.bytes(i)) at -= samples.bytes(i++);
  return samples.indices[i];
}

}  // namespace fastload
