// One batch on its way: from indices to filled slots.
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
  bool done = false;  // only through std::atomic_ref: whoever describes the batch looks at it
};

// What is being done for a batch.
enum class Stage {
  begun,     // it is getting its indices
  checking,  // what they lead to is compared with checksums, if that is wanted
  lengths,   // the bounds of its ragged samples are read
  layout,    // it gets its memory
  gathering,
};

// A batch that a worker has begun. The engine's mutex guards the hand-over from one stage to the
// next: indices to pieces are written by the thread that begins it, before others see it;
// next_piece by whoever claims under the mutex; error by the first that fails.
struct BatchTask {
  // Makes this the task of batch k, keeping the memory of the one before.
  void restart(std::int64_t k) {
    number = k;
    stage.store(Stage::begun);
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
  std::vector<std::int64_t> draws;  // of the same samples, if anybody draws and they are others
  std::atomic<Stage> stage{Stage::begun};
  std::vector<std::int64_t> head;     // the first of the indices; constant from `checking` on
  std::vector<std::int64_t> missing;  // taken from indices: their bytes are damaged
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
