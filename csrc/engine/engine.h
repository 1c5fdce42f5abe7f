// The scheduler of one iterator: which thread makes which batch, and when.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "batch/layout.h"
#include "batch/slot_pool.h"
#include "engine/batch_maker.h"
#include "engine/batch_task.h"
#include "engine/load_stats.h"
#include "engine/options.h"
#include "order/index_source.h"
#include "storage/table.h"

namespace fastload {

// NOTE [Ordered delivery]. Workers start batches in order and finish them in any order; next()
// delivers them in order. A large batch is cut into pieces, and a free worker first helps with the
// oldest batch that has unclaimed pieces, so that all threads work on the batch that the consumer
// waits for. An error belongs to its batch: it is thrown at the turn of that batch, and the
// following batches are delivered as usual.
//
// NOTE [Stalled reads]. A pread from a server that does not answer never returns, and no signal
// interrupts it. So the consumer, which must react to Ctrl-C, never reads such files itself: with
// worker_count 0 one thread does, and only while a consumer waits. A stop waits for workers for a
// limited time; an engine whose workers are still reading must outlive them.
//
// NOTE [Resting worker]. A consumer that comes right back for the next batch gathers, too. If the
// workers alone occupy every core, they and the consumer are one thread too many: they preempt each
// other, and the batch that is due waits for a thread that does not run. So one worker rests while
// the consumer helps, unless batches are large enough to be shared by all. The measurement behind
// it: on two cores, one worker instead of two made a batch of 256 rows of 64 bytes in 8.3 us
// instead of 10.4, one of 3,072 bytes in 54 instead of 60. The rule itself was not measured alone.
//
// How a batch is made is the BatchMaker's part; this class decides who works, starts and joins the
// threads, and guards the tasks. No mutex is held while a batch is made.
//
// Thread-safe; if several threads are in next(), one works and the others wait for it. The
// destructor stops and joins. In a forked child an engine is leaked, never destroyed: its condition
// variables have the parent's waiters.
class Engine {
 public:
  enum class Result { kBatch, kPending, kEnd };

  // Starts the workers. Throws as deliveries_of(), and std::system_error if no thread can start.
  Engine(std::shared_ptr<const Table> table, std::shared_ptr<SlotPool> pool,
         std::shared_ptr<IndexSource> order, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Takes the next batch if it is ready; never waits. Throws the batch's error, after which the
  // following call continues with the next batch; StoppedError after stop() and in a forked child.
  Result try_next(std::unique_ptr<BatchTask>& out);
  // Whether try_next() would return kBatch or kEnd, or throw.
  bool is_ready() const;
  // Takes the next batch: works like a worker, or waits, until it is ready or `deadline` has
  // passed. Throws as try_next().
  Result next(std::chrono::steady_clock::time_point deadline, std::unique_ptr<BatchTask>& out);
  // Takes back a delivered task whose slots are no longer needed, for a later batch.
  void recycle(std::unique_ptr<BatchTask> task);
  // Workers finish their piece and are joined; waiting consumers get StoppedError.
  void stop();
  // As stop(), but waits for workers until `deadline` only. Returns whether they were joined; if
  // not, call it again before the engine is destroyed.
  bool stop_until(std::chrono::steady_clock::time_point deadline);
  // As stop(), but neither waits nor joins.
  void request_stop();
  // Counts of all engines that share EngineOptions::stats; zeros in a forked child.
  LoadFigures stats() const;
  // How each column is delivered.
  std::span<const Delivery> deliveries() const { return maker_.deliveries(); }
  // What the next batch is waiting for, and which files are being read for it, as a message.
  std::string describe_due() const;

 private:
  using Scratch = BatchMaker::Scratch;

  // Work for one thread: start a batch, or gather one piece of it. No task: nothing to do now.
  struct Claim {
    BatchTask* task = nullptr;
    std::size_t piece = 0;
    bool starts = false;
  };

  // Workers: worker.cpp.
  void start_workers(int count) FL_EXCLUDES(join_mutex_);
  void run_worker(Scratch& scratch) FL_EXCLUDES(mutex_);
  bool may_work() const FL_REQUIRES(mutex_);
  bool may_consumer_help() const;
  bool one_rests() const FL_REQUIRES(mutex_);
  bool is_surplus() const FL_REQUIRES(mutex_);
  void wake_workers() FL_REQUIRES(mutex_);
  Claim claim() FL_REQUIRES(mutex_);
  void work_on(Scratch& scratch, const Claim& claimed) FL_EXCLUDES(mutex_);
  void start_batch(Scratch& scratch, BatchTask& task) FL_EXCLUDES(mutex_);
  void gather(Scratch& scratch, BatchTask& task, Piece& piece) FL_EXCLUDES(mutex_);
  void publish(BatchTask& task) FL_EXCLUDES(mutex_);
  void complete(BatchTask& task) FL_EXCLUDES(mutex_);
  void order_changed() FL_EXCLUDES(mutex_);

  // Consumers: engine.cpp.
  Result take(std::unique_ptr<BatchTask>& out) FL_REQUIRES(mutex_);
  Result work_until_due(std::chrono::steady_clock::time_point deadline,
                        std::unique_ptr<BatchTask>& out) FL_REQUIRES(mutex_);
  void end_wait(bool delivered) FL_REQUIRES(mutex_);
  void check_not_stopped() const;

  // Constant after construction, or synchronise themselves.
  const std::uint64_t generation_ = fork_generation();
  std::atomic<bool> stopping_{false};
  BatchMaker maker_;
  const std::shared_ptr<IndexSource> order_;
  const std::int64_t depth_;
  const std::size_t worker_count_;  // as requested
  const bool counts_waits_;
  const bool fills_cores_;  // no core is left for a consumer that helps
  const bool on_demand_;    // no workers requested: batches are made only while a consumer waits
  const std::shared_ptr<LoadStats> stats_;

  mutable Mutex mutex_;
  CondVar work_changed_;
  CondVar batch_done_;
  CondVar consumer_left_;
  CondVar worker_ended_;
  // Batches delivered_ .. next_batch_ - 1: started and not yet delivered.
  std::deque<std::unique_ptr<BatchTask>> tasks_ FL_GUARDED_BY(mutex_);
  std::vector<BatchTask*> unclaimed_ FL_GUARDED_BY(mutex_);  // have unclaimed pieces, oldest first
  std::vector<std::unique_ptr<BatchTask>> spare_ FL_GUARDED_BY(mutex_);
  std::int64_t next_batch_ FL_GUARDED_BY(mutex_) = 0;
  std::int64_t delivered_ FL_GUARDED_BY(mutex_) = 0;
  int idle_workers_ FL_GUARDED_BY(mutex_) = 0;
  int running_workers_ FL_GUARDED_BY(mutex_) = 0;
  bool has_consumer_ FL_GUARDED_BY(mutex_) = false;  // a thread is in work_until_due()
  bool consumer_waits_ FL_GUARDED_BY(mutex_) = false;
  bool consumer_helps_ FL_GUARDED_BY(mutex_) = false;  // it came right back for its last batch
  bool shares_batches_ FL_GUARDED_BY(mutex_) = false;  // the last batch was gathered in pieces
  std::chrono::steady_clock::time_point consumer_left_at_ FL_GUARDED_BY(mutex_) = {};
  std::int64_t due_wait_ns_ FL_GUARDED_BY(mutex_) = 0;  // so far, for the next batch

  Scratch consumer_;  // of the thread that set has_consumer_

  Mutex join_mutex_ FL_ACQUIRED_BEFORE(mutex_);
  std::vector<std::thread> threads_ FL_GUARDED_BY(join_mutex_);
};

}  // namespace fastload
