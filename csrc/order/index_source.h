// The one interface through which indices reach the engine, and the kinds behind it.
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

// Batches 0, 1, 2, ... of dataset indices, each taken once, in any order, by any thread.
class IndexSource {
 public:
  enum class State { kReady, kPending, kEnd };

  virtual ~IndexSource() = default;
  // Whether batch k can be taken now, may come later, or lies behind the last one. Thread-safe.
  virtual State state(std::int64_t k) const = 0;
  // Moves batch k into `indices`. `draws`: nullptr, or gets the draws of these samples (IndexSpan);
  // nothing where they are the indices. REQUIRES: state(k) == kReady, and k was not taken before.
  // Thread-safe.
  virtual void take(std::int64_t k, std::vector<std::int64_t>& indices,
                    std::vector<std::int64_t>* draws) = 0;
  // `changed` is called whenever a pending batch becomes ready or the end is known, by the thread
  // that caused it, until the next call. nullptr: nobody listens any more.
  virtual void on_change(std::function<void()> /*changed*/) {}
};

// The keyed or sequential order of an epoch plan.
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
  // `repeats`: nullptr, or gives the draws; it has counted what came before, and is used by nobody
  // else from now on. Throws std::invalid_argument if batch < 1.
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
  // Of batches before counted_ that were not taken yet: they are counted in their order.
  std::map<std::int64_t, std::vector<std::int64_t>> draws_ FL_GUARDED_BY(mutex_);
  std::int64_t counted_ FL_GUARDED_BY(mutex_) = 0;
};

// Batches pushed one by one by the caller's thread: any size, empty ones too.
class PushedOrder final : public IndexSource {
 public:
  // `repeats`: as above.
  explicit PushedOrder(std::shared_ptr<Occurrences> repeats = nullptr)
      : repeats_(std::move(repeats)) {}
  // `draws`: those of the samples (IndexSpan), which `repeats` then does not count; empty:
  // `repeats` gives them. Throws std::invalid_argument after finish(), and if there is not one draw
  // for each index; both throw StoppedError in a forked child.
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
  // From batch first_ on; empty where a later batch was taken before an earlier one.
  std::deque<std::optional<Batch>> waiting_ FL_GUARDED_BY(mutex_);
  const std::shared_ptr<Occurrences> repeats_ FL_GUARDED_BY(mutex_);
  std::int64_t first_ FL_GUARDED_BY(mutex_) = 0;
  bool finished_ FL_GUARDED_BY(mutex_) = false;
  // Held while the listener runs, so that it is not called after on_change(nullptr) returned.
  Mutex listener_mutex_;
  std::function<void()> changed_ FL_GUARDED_BY(listener_mutex_);
};

}  // namespace fastload
