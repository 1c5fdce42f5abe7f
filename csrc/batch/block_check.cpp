#include "batch/block_check.h"

#include <algorithm>

#include "base/error.h"

namespace fastload {

bool BlockCheck::check_rows(std::vector<std::int64_t>& indices, std::vector<std::int64_t>* missing,
                            std::vector<std::int64_t>* draws) {
  return !idle() && check(Part::kRows, indices, {}, missing, draws);
}

bool BlockCheck::check_values(std::vector<std::int64_t>& indices, std::span<const SpanTable> spans,
                              std::vector<std::int64_t>* missing,
                              std::vector<std::int64_t>* draws) {
  return !idle() && check(Part::kValues, indices, spans, missing, draws);
}

bool BlockCheck::check(Part part, std::vector<std::int64_t>& indices,
                       std::span<const SpanTable> spans, std::vector<std::int64_t>* missing,
                       std::vector<std::int64_t>* draws) {
  Checksums& checksums = *table_.checksums();
  const std::size_t columns = table_.columns().size();
  blocks_.clear();
  for (std::size_t number = 0; number < columns; ++number) {
    if (!locate(part, number, indices, spans)) continue;
    for (const Range& range : ranges_) {
      checksums.unchecked(range.source, range.begin, range.end, blocks_);
    }
  }
  if (blocks_.empty()) return false;
  check_blocks();
  if (blocks_.empty()) return false;
  if (missing == nullptr) throw FormatError(checksums.complaint(blocks_.front()));
  bad_samples_.assign(indices.size(), 0);
  for (std::size_t number = 0; number < columns; ++number) {
    if (!locate(part, number, indices, spans)) continue;
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      blocks_.clear();  // a block that is not good after check_blocks() is bad
      checksums.unchecked(ranges_[i].source, ranges_[i].begin, ranges_[i].end, blocks_);
      if (!blocks_.empty()) bad_samples_[i] = 1;
    }
  }
  move_bad(indices, *missing, draws);
  return true;
}

void BlockCheck::move_bad(std::vector<std::int64_t>& indices, std::vector<std::int64_t>& missing,
                          std::vector<std::int64_t>* draws) const {
  const bool drawn = draws != nullptr && !draws->empty();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (bad_samples_[i] != 0) {
      missing.push_back(indices[i]);
      continue;
    }
    if (drawn) (*draws)[kept] = (*draws)[i];
    indices[kept++] = indices[i];
  }
  indices.resize(kept);
  if (drawn) draws->resize(kept);
}

bool BlockCheck::locate(Part part, std::size_t number, std::span<const std::int64_t> indices,
                        std::span<const SpanTable> spans) {
  const Column* column = &table_.columns()[number];
  const bool ragged = column->bounds != nullptr;
  if (part == Part::kValues && !ragged) return false;
  if (part == Part::kRows && ragged) column = &column->bounds->column;
  places_.resize(indices.size());
  ranges_.resize(indices.size());
  table_.group_of(*column).locate(table_.mapped(indices, rows_).rows(), places_);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const auto shard = static_cast<std::size_t>(places_[i].shard);
    std::int64_t first = places_[i].row;
    std::int64_t bytes = column->row_bytes;
    if (part == Part::kValues) {
      first = spans[number].begins[i];
      bytes *= spans[number].spans().length(i);
    }
    const std::int64_t begin = column->offsets[shard] + first * column->row_stride;
    ranges_[i] = {column->sources[shard], begin, begin + bytes};
  }
  return true;
}

void BlockCheck::check_blocks() {
  Checksums& checksums = *table_.checksums();
  std::sort(blocks_.begin(), blocks_.end());
  blocks_.erase(std::unique(blocks_.begin(), blocks_.end()), blocks_.end());
  for (const std::int64_t block : blocks_) checksums.will_need(block);
  std::erase_if(blocks_, [&](std::int64_t block) {
    if (stopping_ != nullptr && stopping_->load()) throw StoppedError("the iterator was stopped");
    return checksums.check(block);
  });
}

}  // namespace fastload
