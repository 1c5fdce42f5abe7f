#include "engine/measure.h"

#include <barrier>
#include <chrono>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "batch/copy.h"
#include "batch/gather.h"
#include "batch/host_memory.h"

namespace fastload {
namespace {

using Clock = std::chrono::steady_clock;

// What is copied, for one column.
struct Rows {
  std::vector<const std::byte*> addresses;
  std::size_t row_bytes;
};

class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : bytes_(bytes + 1), data_(memory_.allocate(bytes_)) {}
  ~Buffer() { memory_.release(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* data() const { return data_; }

 private:
  HostMemory memory_;
  std::size_t bytes_;
  std::byte* data_;
};

// Copies every `step`-th batch from `first` on, over and over, until `seconds` after all threads
// have come through `ready`, each with warm buffers. Returns bytes per second.
double copy_for(double seconds, std::barrier<>& ready, const std::vector<Rows>& columns,
                std::size_t batch, std::size_t first, std::size_t step) {
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::size_t batch_bytes = 0;
  for (const Rows& rows : columns) {
    buffers.push_back(std::make_unique<Buffer>(batch * rows.row_bytes));
    batch_bytes += batch * rows.row_bytes;
  }
  const CopyKernel& kernel = copy_kernel();
  const std::size_t batch_count = columns.front().addresses.size() / batch;
  std::size_t k = first % batch_count;
  const auto copy_next = [&] {
    for (std::size_t c = 0; c < columns.size(); ++c) {
      kernel.copy_rows(buffers[c]->data(), columns[c].addresses.data() + k * batch, batch,
                       columns[c].row_bytes);
    }
    k = (k + step) % batch_count;
  };
  copy_next();
  ready.arrive_and_wait();
  const Clock::time_point start = Clock::now();
  std::int64_t bytes = 0;
  std::int64_t unchecked = 0;
  for (;;) {
    copy_next();
    bytes += static_cast<std::int64_t>(batch_bytes);
    unchecked += static_cast<std::int64_t>(batch_bytes) + 1;
    if (unchecked < (1 << 18)) continue;  // looking at the clock is not free
    unchecked = 0;
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    if (elapsed >= seconds) return static_cast<double>(bytes) / elapsed;
  }
}

}  // namespace

double measure_gather(const Table& table, std::span<const std::int64_t> indices, std::int64_t batch,
                      int threads, double seconds) {
  if (batch < 1 || threads < 1 || static_cast<std::int64_t>(indices.size()) < batch ||
      table.columns().empty()) {
    throw std::invalid_argument("measuring needs a column, a thread and one whole batch");
  }
  table.check_process();
  table.check_indices(indices);
  std::vector<std::unique_ptr<Gatherer>> gatherers;  // they hold the mappings, each of one column
  std::vector<Rows> columns;
  for (const Column& column : table.columns()) {
    gatherers.push_back(std::make_unique<Gatherer>(table));
    const auto rows = gatherers.back()->addresses(column, indices);
    columns.push_back({{rows.begin(), rows.end()}, static_cast<std::size_t>(column.row_bytes)});
    for (const std::byte* row : rows) {
      if (row == nullptr)
        throw std::invalid_argument("rows read by pread have no memory-bus limit");
    }
  }
  std::barrier<> ready(threads);
  std::vector<double> speeds(static_cast<std::size_t>(threads));
  std::vector<std::thread> team;
  for (std::size_t t = 0; t < speeds.size(); ++t) {
    team.emplace_back([&, t] {
      speeds[t] =
          copy_for(seconds, ready, columns, static_cast<std::size_t>(batch), t, speeds.size());
    });
  }
  for (std::thread& thread : team) thread.join();
  return std::accumulate(speeds.begin(), speeds.end(), 0.0);
}

}  // namespace fastload
