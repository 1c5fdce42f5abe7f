// Who gathers which batch when: one iterator's run over its batches.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "batch/layout.h"
#include "batch/slot_pool.h"
#include "engine/batch_task.h"
#include "engine/load_stats.h"
#include "engine/readahead.h"
#include "order/index_source.h"
#include "storage/table.h"

namespace fastload {

// What becomes of a batch with samples that do not fit their checksums.
enum class OnError {
  raise,  // its error is thrown at its turn
  skip,   // it is delivered without them
};

struct EngineOptions {
  int worker_count = 0;    // 0: the thread that calls next() does the work
  std::int64_t depth = 2;  // batches being filled or ready; delivered ones do not count
  OnError on_error = OnError::raise;
  std::vector<std::optional<PadTo>> paddings = {};        // per column, for ragged ones; or empty
  std::vector<std::optional<ImageDelivery>> images = {};  // per column, for the others; or empty
  std::shared_ptr<LoadStats> stats = nullptr;             // counts there; null: for itself
  bool counts_waits = true;  // false: somebody between engine and consumer does
  bool wants_draws = false;  // of samples, also if it delivers no images that need them
};

// NOTE [Ordered delivery]. Workers begin batches in order and finish them in any; next() hands them
// out in order. A batch is cut into pieces of a few MiB, and a free worker first helps with the
// oldest batch that has unclaimed pieces, so that the batch the consumer waits for gets all hands.
// An error belongs to its batch: it is thrown when that batch's turn comes, and the following
// batches are delivered as usual.
//
// NOTE [Stalled reads]. A pread from a server that does not answer waits for ever, and for no
// signal. So the consumer, who has to see Ctrl-C, never reads such files itself: with worker_count
// 0 a thread does it while a consumer waits, and only then. A stop waits for workers for a limited
// time; an engine whose workers are still reading has to outlive them.
//
// Thread-safe; several threads in next() take turns. The destructor stops and joins. In a forked
// child an engine is leaked, never destroyed: its condition variables have the parent's waiters.
class Engine {
 public:
  enum class Result { batch, pending, end };

  // Starts the workers. Throws std::invalid_argument for a negative worker_count, a depth outside
  // [1, 2^31], and paddings and images that do not fit the table.
  Engine(std::shared_ptr<const Table> table, std::shared_ptr<SlotPool> pool,
         std::shared_ptr<IndexSource> order, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The next batch if it is ready, without waiting. Throws the batch's error, after which the
  // following call goes on with the next batch; StoppedError after stop() and in a forked child.
  Result try_next(std::unique_ptr<BatchTask>& out);
  // Whether try_next() would give something now: a batch, its error or the end; or throw
  // StoppedError.
  bool is_ready() const;
  // The next batch, working like any worker, or waiting, until it is ready or `deadline` has come.
  Result next(std::chrono::steady_clock::time_point deadline, std::unique_ptr<BatchTask>& out);
  // Takes back a delivered task whose slots are no longer needed, for a later batch.
  void recycle(std::unique_ptr<BatchTask> task);
  // Ends the run: workers finish their piece and are joined, waiting consumers get StoppedError.
  void stop();
  // The same, but waits for workers until `deadline` only. Whether they were joined; if not, this
  // must not be destroyed yet: call it again later.
  bool stop_until(std::chrono::steady_clock::time_point deadline);
  // stop() without joining, for a signal that has no time to wait.
  void request_stop();
  // Of all engines that count there; zeros in a forked child.
  LoadFigures stats() const;
  // How each column is delivered.
  std::span<const Delivery> deliveries() const { return deliveries_; }
  // What the batch that is due is waiting for, and which files are read for it, for a person.
  std::string describe_due() const;

 private:
  struct Worker;  // one thread's scratch

  // Something to do: begin a batch, or gather one piece of it. No task: nothing now.
  struct Claim {
    BatchTask* task = nullptr;
    std::size_t piece = 0;
    bool begins = false;
  };

  void start_workers(int count);
  void run(Worker& worker);
  bool may_work() const FL_REQUIRES(mutex_);
  void order_changed();
  Claim claim() FL_REQUIRES(mutex_);
  void work_on(Worker& worker, const Claim& claimed);
  void begin(Worker& worker, BatchTask& task);
  void read_spans(Worker& worker, BatchTask& task);
  void announce(const BatchLayout& layout);
  void plan_pieces(BatchTask& task) const;
  void plan_ragged_pieces(BatchTask& task, std::size_t column) const;
  void publish(BatchTask& task);
  void gather(Worker& worker, BatchTask& task, Piece& piece);
  std::int64_t gather_piece(Worker& worker, BatchTask& task, const Piece& piece) const;
  void complete(BatchTask& task);
  Result take(std::unique_ptr<BatchTask>& out) FL_REQUIRES(mutex_);
  void end_wait(bool came) FL_REQUIRES(mutex_);
  Result take_when_done(std::chrono::steady_clock::time_point deadline,
                        std::unique_ptr<BatchTask>& out) FL_REQUIRES(mutex_);
  void check_alive() const;
  std::set<std::int32_t> sources_read(const BatchTask& task) const;

  // Constant after construction.
  const std::uint64_t generation_ = fork_generation();
  const std::shared_ptr<const Table> table_;
  const std::shared_ptr<SlotPool> pool_;
  const std::shared_ptr<IndexSource> order_;
  const EngineOptions options_;
  const std::vector<Delivery> deliveries_;  // per column
  const bool any_ragged_;
  const bool draws_;      // whether anybody needs the draws of samples
  const bool on_demand_;  // batches are begun for a consumer that waits only
  const std::shared_ptr<LoadStats> stats_;

  // Synchronise themselves.
  Readahead readahead_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::size_t> demand_bytes_{0};  // what the pool was told

  mutable Mutex mutex_;
  CondVar work_changed_;
  CondVar batch_done_;
  CondVar seat_free_;
  CondVar worker_left_;
  // Batches delivered_ .. next_batch_ - 1, begun and not yet delivered.
  std::deque<std::unique_ptr<BatchTask>> tasks_ FL_GUARDED_BY(mutex_);
  std::vector<BatchTask*> open_ FL_GUARDED_BY(mutex_);  // have unclaimed pieces, oldest first
  std::vector<std::unique_ptr<BatchTask>> spare_ FL_GUARDED_BY(mutex_);
  std::int64_t next_batch_ FL_GUARDED_BY(mutex_) = 0;
  std::int64_t delivered_ FL_GUARDED_BY(mutex_) = 0;
  int idle_workers_ FL_GUARDED_BY(mutex_) = 0;
  int running_workers_ FL_GUARDED_BY(mutex_) = 0;
  bool consumer_seated_ FL_GUARDED_BY(mutex_) = false;  // one thread at a time works in next()
  bool consumer_waits_ FL_GUARDED_BY(mutex_) = false;
  std::int64_t due_wait_ns_ FL_GUARDED_BY(mutex_) = 0;  // so far, for the batch that is due

  std::unique_ptr<Worker> consumer_;  // the scratch of the thread that is seated in next()
  Mutex join_mutex_;
  std::vector<std::thread> threads_ FL_GUARDED_BY(join_mutex_);
};

}  // namespace fastload
