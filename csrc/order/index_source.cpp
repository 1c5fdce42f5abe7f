#include "order/index_source.h"

#include <algorithm>
#include <stdexcept>

#include "base/error.h"

namespace fastload {

IndexSource::State PlanOrder::state(std::int64_t k) const {
  return k < plan_.batch_count() ? State::kReady : State::kEnd;
}

void PlanOrder::take(std::int64_t k, std::vector<std::int64_t>& out) { plan_.indices(k, out); }

ArrayOrder::ArrayOrder(std::span<const std::int64_t> indices, std::int64_t batch, bool drop_last)
    : indices_(indices), batch_(batch) {
  if (batch < 1) throw std::invalid_argument("batch_size must be positive");
  const auto count = static_cast<std::int64_t>(indices.size());
  batch_count_ = count / batch + (!drop_last && count % batch != 0 ? 1 : 0);
}

IndexSource::State ArrayOrder::state(std::int64_t k) const {
  return k < batch_count_ ? State::kReady : State::kEnd;
}

void ArrayOrder::take(std::int64_t k, std::vector<std::int64_t>& out) {
  const auto first = static_cast<std::size_t>(k * batch_);
  const auto part =
      indices_.subspan(first, std::min(static_cast<std::size_t>(batch_), indices_.size() - first));
  out.assign(part.begin(), part.end());
}

void PushedOrder::check_process() const {
  if (generation_ == fork_generation()) return;
  throw StoppedError("the iterator belongs to the parent process; make a new one here");
}

void PushedOrder::push(std::vector<std::int64_t> indices) {
  check_process();
  {
    MutexLock lock(mutex_);
    if (finished_) throw std::invalid_argument("push after finish");
    waiting_.push_back(std::move(indices));
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

void PushedOrder::take(std::int64_t k, std::vector<std::int64_t>& out) {
  MutexLock lock(mutex_);
  std::optional<std::vector<std::int64_t>>& batch =
      waiting_.at(static_cast<std::size_t>(k - first_));
  out = std::move(batch.value());
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
