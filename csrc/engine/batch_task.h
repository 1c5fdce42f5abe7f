// One batch on its way: from indices to filled slots.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <vector>

#include "batch/layout.h"
#include "batch/slot_pool.h"
#include "batch/spans.h"

namespace fastload {

// A piece of a batch that one thread gathers: some samples of one field.
struct Piece {
  std::size_t column;
  std::size_t first;  // sample in the batch
  std::size_t count;
};

// A batch that a worker has begun. The engine's mutex guards the hand-over from one stage to the
// next: indices to pieces are written by the thread that begins it, before others see it;
// next_piece by whoever claims under the mutex; error by the first that fails.
struct BatchTask {
  // Makes this the task of batch k, keeping the memory of the one before.
  void restart(std::int64_t k) {
    number = k;
    missing.clear();
    slots.clear();
    pieces.clear();
    next_piece = 0;
    piece_count.store(0);
    failed.store(false);
    error = nullptr;
    done = false;
  }

  std::int64_t number = 0;
  std::vector<std::int64_t> indices;
  std::vector<std::int64_t> missing;  // taken from indices: their bytes are damaged
  std::vector<SpanTable> spans;       // one per column, used by the ragged ones
  BatchLayout layout;
  std::vector<Lease> slots;  // one per array
  std::vector<Piece> pieces;
  std::size_t next_piece = 0;
  std::atomic<std::size_t> piece_count{0};  // 0 until the pieces are planned
  std::atomic<std::size_t> pieces_left{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  bool done = false;
};

}  // namespace fastload
