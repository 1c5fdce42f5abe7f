// IndexSource, the interface through which indices reach the engine, and its implementations.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "order/epoch_plan.h"
#include "order/occurrences.h"

namespace fastload {

// Batches 0, 1, 2, ... of dataset indices. Each is taken once, in any order, by any thread.
class IndexSource {
 public:
  enum class State { kReady, kPending, kEnd };

  virtual ~IndexSource() = default;
  // Whether batch k can be taken now, may become ready, or is past the last batch. Thread-safe.
  virtual State state(std::int64_t k) const = 0;
  // Moves batch k into `indices`, and the draws of its samples (IndexSpan) into `draws` unless that
  // is nullptr; `draws` is empty if they are the indices. REQUIRES: state(k) == kReady, and k was
  // not taken before. Thread-safe.
  virtual void take(std::int64_t k, std::vector<std::int64_t>& indices,
                    std::vector<std::int64_t>* draws) = 0;
  // Sets the listener, which is called whenever a pending batch becomes ready or the end is known,
  // by the thread that caused it. nullptr: no listener. A listener does not run after the call that
  // replaced it has returned. Thread-safe.
  virtual void on_change(std::function<void()> /*changed*/) {}
};

// The order of an epoch plan.
class PlanOrder final : public IndexSource {
 public:
  explicit PlanOrder(EpochPlan plan) : plan_(plan) {}
  State state(std::int64_t k) const override;
  void take(std::int64_t k, std::vector<std::int64_t>& indices,
            std::vector<std::int64_t>* draws) override;

 private:
  const EpochPlan plan_;
};

// A whole order given as an array, cut into batches. The array outlives this object.
class ArrayOrder final : public IndexSource {
 public:
  // `repeats`: nullptr, or makes the draws; it has counted the samples before these, and is owned
  // by this object from now on. Throws std::invalid_argument if batch < 1.
  ArrayOrder(std::span<const std::int64_t> indices, std::int64_t batch, bool drop_last,
             std::shared_ptr<Occurrences> repeats = nullptr);
  State state(std::int64_t k) const override;
  void take(std::int64_t k, std::vector<std::int64_t>& indices,
            std::vector<std::int64_t>* draws) override;

 private:
  std::span<const std::int64_t> batch_indices(std::int64_t k) const;

  const std::span<const std::int64_t> indices_;
  const std::int64_t batch_;
  std::int64_t batch_count_;
  Mutex mutex_;
  const std::shared_ptr<Occurrences> repeats_ FL_GUARDED_BY(mutex_);
  // Of batches before counted_ that were not taken yet, since batches are counted in order.
  std::map<std::int64_t, std::vector<std::int64_t>> draws_ FL_GUARDED_BY(mutex_);
  std::int64_t counted_ FL_GUARDED_BY(mutex_) = 0;
};

// Batches pushed one by one by the caller's thread: any size, empty ones too.
class PushedOrder final : public IndexSource {
 public:
  // `repeats`: as for ArrayOrder.
  explicit PushedOrder(std::shared_ptr<Occurrences> repeats = nullptr)
      : repeats_(std::move(repeats)) {}
  // Appends a batch. `draws`: those of its samples (IndexSpan), which `repeats` then does not
  // count; empty: `repeats` makes them. Throws std::invalid_argument after finish(), and unless
  // there is one draw for each index. push() and finish() throw StoppedError in a forked child.
  // Thread-safe.
  void push(std::vector<std::int64_t> indices, std::vector<std::int64_t> draws = {});
  void finish();
  State state(std::int64_t k) const override;
  void take(std::int64_t k, std::vector<std::int64_t>& indices,
            std::vector<std::int64_t>* draws) override;
  void on_change(std::function<void()> changed) override;

 private:
  struct Batch {
    std::vector<std::int64_t> indices, draws;
  };

  void check_process() const;
  void notify();

  const std::uint64_t generation_ = fork_generation();
  mutable Mutex mutex_;
  // From batch first_ on; an empty one was taken before an earlier one.
  std::deque<std::optional<Batch>> waiting_ FL_GUARDED_BY(mutex_);
  const std::shared_ptr<Occurrences> repeats_ FL_GUARDED_BY(mutex_);
  std::int64_t first_ FL_GUARDED_BY(mutex_) = 0;
  bool finished_ FL_GUARDED_BY(mutex_) = false;
  // Held while the listener runs, so that it is not called after on_change(nullptr) returned.
  Mutex listener_mutex_;
  std::function<void()> changed_ FL_GUARDED_BY(listener_mutex_);
};

}  // namespace fastload
