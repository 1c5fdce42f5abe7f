// Makes batches: from the indices of a batch to its filled slots.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "batch/block_check.h"
#include "batch/gather.h"
#include "batch/layout.h"
#include "batch/slot_pool.h"
#include "engine/batch_task.h"
#include "engine/options.h"
#include "engine/readahead.h"
#include "storage/table.h"

namespace fastload {

// The work of an engine without its schedule: checks, lays out, reserves and gathers the batches
// that it is passed, and knows nothing of their order or of other threads.
//
// Has no mutex. Members are constant or atomic, so threads may call it at the same time: prepare()
// for different tasks, gather() also for different pieces of one task. Each thread passes its own
// Scratch.
class BatchMaker {
 public:
  // The working memory of one thread. Made by the thread that uses it, since major page faults are
  // counted per thread.
  class Scratch {
   public:
    // REQUIRES: maker outlives this.
    explicit Scratch(const BatchMaker& maker)
        : gatherer_(*maker.table_),
          check_(*maker.table_, &maker.stopping_),
          monitor_(Readahead::monitor()) {}

   private:
    friend class BatchMaker;

    Gatherer gatherer_;
    BlockCheck check_;
    Readahead::Monitor monitor_;
  };

  // Once `stopping` is set, checks end early and pieces are not gathered. REQUIRES: it outlives
  // this. Throws as deliveries_of().
  BatchMaker(std::shared_ptr<const Table> table, std::shared_ptr<SlotPool> pool,
             const EngineOptions& options, const std::atomic<bool>& stopping);
  // Returns its demand to the pool.
  ~BatchMaker();
  BatchMaker(const BatchMaker&) = delete;
  BatchMaker& operator=(const BatchMaker&) = delete;

  const Table& table() const { return *table_; }
  // How each column is delivered.
  std::span<const Delivery> deliveries() const { return deliveries_; }
  // Whether tasks need `draws`.
  bool wants_draws() const { return wants_draws_; }
  // Whether rows are read ahead, because the data are not in the page cache.
  bool is_cold() const { return readahead_.cold(); }
  // Whether the pieces of a prepared task are cut so that several threads can share them; else each
  // field is one piece.
  static bool is_shared(const BatchTask& task);

  // From task.indices (and draws) to layout, slots and pieces; no pieces if no samples are left.
  // Throws std::out_of_range for indices outside the table; FormatError and OsError, which name
  // file and sample; StoppedError, std::bad_alloc and std::overflow_error.
  void prepare(Scratch& scratch, BatchTask& task);
  // Gathers one piece of a prepared task. An error, the first of the task, is left in task.error.
  // Returns whether this was the last piece of the task.
  bool gather(Scratch& scratch, BatchTask& task, Piece& piece);

 private:
  void read_spans(Scratch& scratch, BatchTask& task);
  void reserve_slots(const BatchLayout& layout);
  void plan_pieces(BatchTask& task) const;
  void plan_ragged_pieces(BatchTask& task, std::size_t column) const;
  std::int64_t gather_piece(Scratch& scratch, BatchTask& task, const Piece& piece) const;

  const std::shared_ptr<const Table> table_;
  const std::shared_ptr<SlotPool> pool_;
  const std::atomic<bool>& stopping_;
  const std::vector<Delivery> deliveries_;  // per column
  const std::int64_t depth_;
  const bool skips_damage_;
  const bool any_ragged_;
  const bool wants_draws_;

  Readahead readahead_;
  std::atomic<std::size_t> demand_bytes_{0};  // announced to the pool
};

}  // namespace fastload
