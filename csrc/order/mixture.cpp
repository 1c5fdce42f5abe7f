#include "order/mixture.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/hash.h"
#include "order/permutation.h"

namespace fastload {
namespace {

// Entries of all phases together, one for each source of a phase: 256 MiB.
constexpr std::size_t kMaxEntries = std::size_t{1} << 24;

void check_sum(const std::vector<std::int64_t>& values, std::int64_t least, const char* what) {
  std::int64_t sum = 0;
  for (std::int64_t value : values) {
    if (value < least || value > Interleave::kEnd - sum) {
      throw std::invalid_argument(std::string("mixture: ") + what + " must be at least " +
                                  std::to_string(least) + " and add up to at most 2^62, got " +
                                  std::to_string(value));
    }
    sum += value;
  }
  if (sum < 1) throw std::invalid_argument(std::string("mixture: all ") + what + " are 0");
}

}  // namespace

Mixture::Mixture(MixtureSpec spec) : spec_(std::move(spec)), starts_(1, 0) {
  if (spec_.sizes.size() != spec_.weights.size()) {
    throw std::invalid_argument("mixture: there must be one weight for each source, got " +
                                std::to_string(spec_.weights.size()) + " for " +
                                std::to_string(spec_.sizes.size()));
  }
  check_sum(spec_.sizes, 1, "sizes");
  check_sum(spec_.weights, 0, "weights");
  for (std::int64_t size : spec_.sizes) starts_.push_back(starts_.back() + size);
  if (drops() && spec_.samples) {
    throw std::invalid_argument(
        "mixture: the number of samples follows from exhausted=drop, and cannot be given");
  }
  if (drops()) {
    plan_phases();
    return;
  }
  phases_.push_back({0, Interleave(spec_.weights), std::vector<std::int64_t>(spec_.sizes.size())});
  size_ = spec_.samples ? *spec_.samples : planned_size();
  if (size_ < 1 || size_ >= Interleave::kEnd) {
    throw std::invalid_argument("mixture: an epoch must have 1 to 2^62 samples, got " +
                                std::to_string(size_));
  }
}

std::int64_t Mixture::planned_size() const {
  const bool stops = spec_.exhausted == Exhausted::kStop;
  std::int64_t size = stops ? Interleave::kEnd : 0;
  const Interleave& order = phases_.front().order;
  for (std::size_t d = 0; d < spec_.sizes.size(); ++d) {
    if (spec_.weights[d] == 0) continue;
    const std::int64_t n = spec_.sizes[d];
    size = stops ? std::min(size, order.position_of(d, n))
                 : std::max(size, order.position_of(d, n - 1) + 1);
  }
  return size;
}

// A phase ends where a source that was read to its end would be visited again. Then all such
// sources leave.
void Mixture::plan_phases() {
  const std::size_t count = spec_.sizes.size();
  std::vector<std::int64_t> weights = spec_.weights;
  std::vector<std::int64_t> visited(count, 0);
  std::vector<std::int64_t> visits(count);
  while (std::any_of(weights.begin(), weights.end(), [](std::int64_t w) { return w > 0; })) {
    if ((phases_.size() + 1) * count > kMaxEntries) {
      throw std::invalid_argument("mixture: too many sources leave at different times, " +
                                  std::to_string(count) + " sources in more than " +
                                  std::to_string(phases_.size()) + " phases");
    }
    const Interleave order(weights);
    std::int64_t length = Interleave::kEnd;
    for (std::size_t d = 0; d < count; ++d) {
      if (weights[d] == 0) continue;
      length = std::min(length, order.position_of(d, spec_.sizes[d] - visited[d]));
    }
    order.visits_before(length, visits);
    phases_.push_back({size_, order, visited});
    size_ += length;
    for (std::size_t d = 0; d < count; ++d) {
      visited[d] += visits[d];
      if (visited[d] == spec_.sizes[d]) weights[d] = 0;
    }
  }
}

Mixture::Place Mixture::place_of(std::int64_t index) const {
  std::int64_t pass = 0;
  const Phase* phase = phases_.data();
  if (drops()) {
    pass = index / size_;
    index %= size_;
    const auto next = std::upper_bound(
        phases_.begin() + 1, phases_.end(), index,
        [](std::int64_t position, const Phase& later) { return position < later.begin; });
    phase = &*(next - 1);
    index -= phase->begin;
  }
  const auto [source, visit] = phase->order.at(index);
  const std::int64_t n = spec_.sizes[source];
  std::int64_t sample = phase->visited[source] + visit;
  if (!drops()) {
    pass = sample / n;
    sample %= n;
  }
  if (!spec_.seed) return {source, sample};
  // The order of epoch `pass`, with another seed for each source.
  const std::uint64_t key = hash_key(*spec_.seed, source, 0);
  const Permutation order(n, hash_key(key, static_cast<std::uint64_t>(pass), 0));
  return {source, order.index_at(sample)};
}

void Mixture::rows(std::span<const std::int64_t> indices, std::span<std::int64_t> rows) const {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const Place place = place_of(indices[i]);
    rows[i] = starts_[place.source] + place.sample;
  }
}

void Mixture::locate(std::span<const std::int64_t> indices, std::span<std::int64_t> sources,
                     std::span<std::int64_t> samples) const {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const Place place = place_of(indices[i]);
    sources[i] = static_cast<std::int64_t>(place.source);
    samples[i] = place.sample;
  }
}

std::vector<std::int64_t> Mixture::counts(std::int64_t epoch) const {
  const std::size_t count = spec_.sizes.size();
  std::vector<std::int64_t> counts(count);
  if (drops()) {
    for (std::size_t d = 0; d < count; ++d) {
      counts[d] = spec_.weights[d] > 0 ? spec_.sizes[d] : 0;
    }
    return counts;
  }
  std::vector<std::int64_t> before(count);
  phases_.front().order.visits_before(epoch * size_, before);
  phases_.front().order.visits_before((epoch + 1) * size_, counts);
  for (std::size_t d = 0; d < count; ++d) counts[d] -= before[d];
  return counts;
}

}  // namespace fastload
