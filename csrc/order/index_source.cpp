#include "order/index_source.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/error.h"

namespace fastload {

IndexSource::State PlanOrder::state(std::int64_t k) const {
  return k < plan_.batch_count() ? State::kReady : State::kEnd;
}

void PlanOrder::take(std::int64_t k, std::vector<std::int64_t>& indices,
                     std::vector<std::int64_t>* draws) {
  plan_.indices(k, indices);
  if (draws != nullptr) plan_.draws(k, *draws);
}

ArrayOrder::ArrayOrder(std::span<const std::int64_t> indices, std::int64_t batch, bool drop_last,
                       std::shared_ptr<Occurrences> repeats)
    : indices_(indices), batch_(batch), repeats_(std::move(repeats)) {
  if (batch < 1)
    throw std::invalid_argument("batch_size must be positive, got " + std::to_string(batch));
  const auto count = static_cast<std::int64_t>(indices.size());
  batch_count_ = count / batch + (!drop_last && count % batch != 0 ? 1 : 0);
}

IndexSource::State ArrayOrder::state(std::int64_t k) const {
  return k < batch_count_ ? State::kReady : State::kEnd;
}

void ArrayOrder::take(std::int64_t k, std::vector<std::int64_t>& indices,
                      std::vector<std::int64_t>* draws) {
  const auto part = batch_indices(k);
  indices.assign(part.begin(), part.end());
  if (draws == nullptr) return;
  draws->clear();
  MutexLock lock(mutex_);
  if (repeats_ == nullptr) return;
  for (; counted_ <= k; ++counted_) repeats_->count(batch_indices(counted_), &draws_[counted_]);
  *draws = std::move(draws_.extract(k).mapped());
}

std::span<const std::int64_t> ArrayOrder::batch_indices(std::int64_t k) const {
  const auto first = static_cast<std::size_t>(k * batch_);
  return indices_.subspan(first,
                          std::min(static_cast<std::size_t>(batch_), indices_.size() - first));
}

void PushedOrder::check_process() const {
  if (generation_ == fork_generation()) return;
  throw StoppedError("the iterator belongs to the parent process; make a new one here");
}

void PushedOrder::push(std::vector<std::int64_t> indices, std::vector<std::int64_t> draws) {
  check_process();
  if (!draws.empty() && draws.size() != indices.size()) {
    throw std::invalid_argument("there must be one RNG key for each index, got " +
                                std::to_string(draws.size()) + " for " +
                                std::to_string(indices.size()));
  }
  {
    MutexLock lock(mutex_);
    if (finished_) throw std::invalid_argument("push() was called after finish()");
    if (draws.empty() && repeats_ != nullptr) repeats_->count(indices, &draws);
    waiting_.push_back(Batch{std::move(indices), std::move(draws)});
  }
  notify();
}

void PushedOrder::finish() {
  check_process();
  {
    MutexLock lock(mutex_);
    finished_ = true;
  }
  notify();
}

IndexSource::State PushedOrder::state(std::int64_t k) const {
  MutexLock lock(mutex_);
  if (k < first_ + static_cast<std::int64_t>(waiting_.size())) return State::kReady;
  return finished_ ? State::kEnd : State::kPending;
}

void PushedOrder::take(std::int64_t k, std::vector<std::int64_t>& indices,
                       std::vector<std::int64_t>* draws) {
  MutexLock lock(mutex_);
  std::optional<Batch>& batch = waiting_.at(static_cast<std::size_t>(k - first_));
  indices = std::move(batch.value().indices);
  if (draws != nullptr) *draws = std::move(batch.value().draws);
  batch.reset();
  for (; !waiting_.empty() && !waiting_.front(); ++first_) waiting_.pop_front();
}

void PushedOrder::on_change(std::function<void()> changed) {
  MutexLock lock(listener_mutex_);
  changed_ = std::move(changed);
}

void PushedOrder::notify() {
  MutexLock lock(listener_mutex_);
  if (changed_) changed_();
}

}  // namespace fastload
