// One batch while it is made: from indices to filled slots.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <vector>

#include "base/index_map.h"
#include "batch/layout.h"
#include "batch/slot_pool.h"
#include "batch/spans.h"

namespace fastload {

// A piece of a batch that one thread gathers: some samples of one field.
struct Piece {
  std::size_t column;
  std::size_t first;  // sample in the batch
  std::size_t count;
  bool done =
      false;  // accessed through std::atomic_ref, since describe_progress() reads it meanwhile
};

// The step in which a batch is.
enum class Stage {
  kIndices,    // takes its indices
  kChecking,   // compares the bytes of its samples with checksums, if there are any
  kLengths,    // reads the bounds of its ragged samples
  kLayout,     // reserves its memory
  kGathering,  // copies its samples
};

// A batch that a worker has started. Written by one thread at a time, in this order:
// - indices to pieces, by the thread that prepares it, before it is published;
// - next_piece, and done at the end, under the engine's mutex;
// - the bytes of a piece and its `done`, by the thread that claimed it; error by the first piece
//   that fails.
// describe_progress() may read number, stage, head, and from Stage::kGathering on indices and
// pieces, at any time. Everything else belongs to the consumer once the engine has delivered the
// task.
struct BatchTask {
  // Makes this the task of batch k. Keeps the memory of the batch before.
  void restart(std::int64_t k) {
    number = k;
    stage.store(Stage::kIndices);
    rows.clear();
    draws.clear();
    head.clear();
    missing.clear();
    slots.clear();
    pieces.clear();
    next_piece = 0;
    failed.store(false);
    error = nullptr;
    done = false;
  }

  IndexSpan samples() const {
    return {indices, rows.empty() ? indices : rows, draws.empty() ? indices : draws};
  }

  std::int64_t number = 0;
  std::vector<std::int64_t> indices;
  std::vector<std::int64_t> rows;   // of the indices, if there is an index map
  std::vector<std::int64_t> draws;  // of the same samples, if needed and different from indices
  std::atomic<Stage> stage{Stage::kIndices};
  std::vector<std::int64_t> head;     // the first of the indices; constant from `checking` on
  std::vector<std::int64_t> missing;  // removed from indices, since their bytes are damaged
  std::vector<SpanTable> spans;       // one per column, used by the ragged ones
  BatchLayout layout;
  std::vector<Lease> slots;  // one per array
  std::vector<Piece> pieces;
  std::size_t next_piece = 0;
  std::atomic<std::size_t> pieces_left{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  bool done = false;
};

}  // namespace fastload
