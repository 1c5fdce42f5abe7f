#include "batch/row_reader.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/error.h"
#include "batch/copy.h"

namespace fastload {

void RowReader::read_rows(const Column& column, IndexSpan indices, std::byte* out) {
  const auto places = resolver_.locate(column, indices);
  for (std::size_t first = 0; first < indices.size();) {
    std::size_t end = first + 1;
    if (column.row_stride == column.row_bytes) {
      while (end < indices.size() && places[end].shard == places[first].shard &&
             places[end].row == places[end - 1].row + 1) {
        ++end;
      }
    }
    read_neighbours(column, places[first], indices.subspan(first, end - first),
                    out + first * static_cast<std::size_t>(column.row_bytes));
    first = end;
  }
}

bool RowReader::try_read_rows(const Column& column, IndexSpan indices, std::byte* out) {
  try {
    read_rows(column, indices, out);
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

// Reads rows that lie side by side, the first one at `place`.
void RowReader::read_neighbours(const Column& column, const RowPlace& place, IndexSpan samples,
                                std::byte* out) {
  const auto shard = static_cast<std::size_t>(place.shard);
  const Source& source = resolver_.table().source(column.sources[shard]);
  const std::int64_t offset = column.offsets[shard] + place.row * column.row_stride;
  const std::size_t bytes = samples.size() * static_cast<std::size_t>(column.row_bytes);
  if (source.file < 0) {
    std::copy_n(source.memory.data() + offset, bytes, out);
    return;
  }
  const std::size_t done = read_file(column, samples[0], source.file, offset, {out, bytes});
  if (done == bytes) return;
  throw_unreadable(resolver_.table(), column,
                   samples[done / static_cast<std::size_t>(column.row_bytes)], source.file);
}

std::span<const Run> RowReader::read_runs(const ColumnSamples& samples, bool cold) {
  const auto runs = resolver_.runs();
  left_.clear();
  for (std::size_t run = 0; run < runs.size(); ++run) {
    if (runs[run].from == nullptr) {
      read_run(samples, run);
      continue;
    }
    const bool scattered = cold && std::cmp_less(runs[run].bytes, kSmallRowBytes) &&
                           resolver_.file(samples.column, run) >= 0;
    if (!scattered || !try_read_run(samples, run)) left_.push_back(runs[run]);
  }
  return left_;
}

bool RowReader::try_read_run(const ColumnSamples& samples, std::size_t run) {
  try {
    read_run(samples, run);
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

void RowReader::read_run(const ColumnSamples& samples, std::size_t number) {
  const Run& run = resolver_.runs()[number];
  const Column& column = samples.column;
  const std::int64_t sample = samples.indices[resolver_.first_sample(number)];
  const std::int32_t file = resolver_.file(column, number);
  const bool converts = column.stored != Stored::kAsDelivered;
  const std::size_t max_bytes = converts ? kReadBytes : run.bytes;
  if (converts) unconverted_.resize(std::min(max_bytes, run.bytes));
  for (std::size_t done = 0; done < run.bytes;) {
    const std::size_t bytes = std::min(max_bytes, run.bytes - done);
    std::byte* out = converts ? unconverted_.data() : run.out;
    const std::int64_t offset = resolver_.offset(number) + static_cast<std::int64_t>(done);
    const std::size_t count = read_file(column, sample, file, offset, {out, bytes});
    if (count < bytes) {
      throw_unreadable(resolver_.table(), column, resolver_.index_at(samples, number, done + count),
                       file);
    }
    if (converts) {
      const auto before = static_cast<std::int64_t>(done) / stored_bytes(column.stored);
      const Run part{out, run.out + before * static_cast<std::int64_t>(sizeof(std::int64_t)),
                     bytes};
      copy_kernel().runs_of(column.stored)({&part, 1});
    }
    done += bytes;
  }
}

// Returns the bytes read: fewer at the end of the file.
std::size_t RowReader::read_file(const Column& column, std::int64_t sample, std::int32_t file,
                                 std::int64_t offset, std::span<std::byte> out) const {
  const auto descriptor = resolver_.table().files().descriptor(file);
  try {
    return descriptor->read_at(offset, out);
  } catch (const OsError& error) {
    throw OsError(error.code(), std::string(error.what()) + " (" + describe(column, sample) + ")",
                  error.path());
  }
}

}  // namespace fastload
