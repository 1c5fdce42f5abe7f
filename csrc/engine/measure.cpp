#include "engine/measure.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <deque>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "batch/copy.h"
#include "batch/gather.h"
#include "batch/host_memory.h"

namespace fastload {
namespace {

using Clock = std::chrono::steady_clock;

// Bytes between two readings of the clock, so that reading it does not count.
constexpr std::int64_t kClockBytes = 1 << 18;

// One column of the samples that are copied.
struct Part {
  const Column* column;
  std::vector<const std::byte*> addresses;  // of rows of one size that are copied unchanged
  SpanTable spans;                          // of ragged ones

  bool plain() const {
    return column->bounds == nullptr && column->stored == Stored::kAsDelivered &&
           !column->strided();
  }
  std::size_t bytes(std::size_t first, std::size_t count) const {
    const std::int64_t rows = column->bounds == nullptr ? static_cast<std::int64_t>(count)
                                                        : spans.spans().part(first, count).total();
    return static_cast<std::size_t>(rows * column->delivered_bytes());
  }
};

struct Samples {
  const Table& table;
  IndexSpan indices;
  std::size_t batch;
  std::vector<Part> parts;

  std::size_t batch_count() const { return indices.size() / batch; }
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

// Copies batches of one part, for one thread.
class Copier {
 public:
  Copier(const Samples& samples, const Part& part)
      : samples_(samples),
        part_(part),
        gatherer_(samples.table, SIZE_MAX),
        runs_(samples.batch_count()),
        buffer_(max_bytes(samples, part)) {}

  // REQUIRES: before copy(k). Throws std::invalid_argument for rows that are read by pread.
  void prepare(std::size_t k) {
    if (part_.plain() || part_.column->strided()) return;
    const std::size_t first = k * samples_.batch;
    const Spans spans =
        part_.column->bounds == nullptr ? Spans{} : part_.spans.spans().part(first, samples_.batch);
    RowResolver& resolver = gatherer_.resolver();
    resolver.resolve_runs({*part_.column, samples_.indices.subspan(first, samples_.batch), spans},
                          nullptr, buffer_.data());
    const auto runs = resolver.runs();
    for (const Run& run : runs) check_mapped(run.from);
    runs_[k].assign(runs.begin(), runs.end());
  }

  // Returns the bytes written.
  std::size_t copy(std::size_t k) {
    const CopyKernel& kernel = copy_kernel();
    const std::size_t first = k * samples_.batch;
    if (part_.column->strided()) {
      gatherer_.gather(*part_.column, samples_.indices.subspan(first, samples_.batch),
                       buffer_.data(), Reading::kMapped);
    } else if (part_.plain()) {
      kernel.copy_rows(buffer_.data(), part_.addresses.data() + first, samples_.batch,
                       static_cast<std::size_t>(part_.column->row_bytes));
    } else {
      kernel.runs_of(part_.column->stored)(runs_[k]);
    }
    return part_.bytes(first, samples_.batch);
  }

  static void check_mapped(const std::byte* row) {
    if (row == nullptr)
      throw std::invalid_argument(
          "rows must be mapped to be measured, got a file that is read by pread");
  }

 private:
  static std::size_t max_bytes(const Samples& samples, const Part& part) {
    std::size_t max = 0;
    for (std::size_t k = 0; k < samples.batch_count(); ++k) {
      max = std::max(max, part.bytes(k * samples.batch, samples.batch));
    }
    return max;
  }

  const Samples& samples_;
  const Part& part_;
  Gatherer gatherer_;  // holds the mappings
  std::vector<std::vector<Run>> runs_;
  Buffer buffer_;
};

// Copies every `step`-th batch from `first` on, over and over, for `seconds`. Starts when all
// threads have reached `ready` with warm buffers. Returns bytes per second.
double copy_for(double seconds, std::barrier<>& ready, std::deque<Copier>& copiers,
                std::size_t batch_count, std::size_t first, std::size_t step) {
  std::size_t k = first % batch_count;
  const auto copy_next = [&] {
    std::size_t bytes = 0;
    for (Copier& copier : copiers) bytes += copier.copy(k);
    k = (k + step) % batch_count;
    return static_cast<std::int64_t>(bytes);
  };
  copy_next();
  ready.arrive_and_wait();
  const Clock::time_point start = Clock::now();
  std::int64_t bytes = 0;
  std::int64_t unchecked = 0;
  for (;;) {
    const std::int64_t written = copy_next();
    bytes += written;
    unchecked += written + 1;
    if (unchecked < kClockBytes) continue;
    unchecked = 0;
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    if (elapsed >= seconds) return static_cast<double>(bytes) / elapsed;
  }
}

Part part_of(Gatherer& gatherer, const Column& column, IndexSpan indices) {
  Part part{&column, {}, {}};
  if (column.bounds != nullptr) {
    gatherer.read_spans(column, indices, part.spans, Reading::kMapped);
  } else if (part.plain()) {
    gatherer.resolver().resolve_rows(column, indices);
    const auto rows = gatherer.resolver().rows();
    part.addresses.assign(rows.begin(), rows.end());
    for (const std::byte* row : rows) Copier::check_mapped(row);
  }
  return part;
}

void check_arguments(const Table& table, std::span<const std::int64_t> indices, std::int64_t batch,
                     int threads) {
  const auto require = [](bool holds, const std::string& rule, std::int64_t given) {
    if (!holds) throw std::invalid_argument(rule + ", got " + std::to_string(given));
  };
  require(batch >= 1, "batch must be at least 1", batch);
  require(threads >= 1, "threads must be at least 1", threads);
  const auto count = static_cast<std::int64_t>(indices.size());
  require(count >= batch, "indices must hold one batch of " + std::to_string(batch), count);
  if (table.columns().empty()) throw std::invalid_argument("the dataset has no fields to measure");
}

}  // namespace

double measure_gather(const Table& table, std::span<const std::int64_t> indices, std::int64_t batch,
                      int threads, double seconds) {
  check_arguments(table, indices, batch, threads);
  table.check_process();
  table.check_indices(indices);
  Gatherer gatherer(table, SIZE_MAX);  // holds the mappings
  std::vector<std::int64_t> rows;
  Samples samples{table, table.mapped(indices, rows), static_cast<std::size_t>(batch), {}};
  for (const Column& column : table.columns()) {
    samples.parts.push_back(part_of(gatherer, column, samples.indices));
  }
  std::vector<std::deque<Copier>> copiers(static_cast<std::size_t>(threads));
  const std::size_t batch_count = samples.batch_count();
  for (std::size_t t = 0; t < copiers.size(); ++t) {
    for (const Part& part : samples.parts) {
      Copier& copier = copiers[t].emplace_back(samples, part);
      std::vector<bool> prepared(batch_count);
      for (std::size_t k = t % batch_count; !prepared[k]; k = (k + copiers.size()) % batch_count) {
        copier.prepare(k);
        prepared[k] = true;
      }
    }
  }
  std::barrier<> ready(threads);
  std::vector<double> speeds(copiers.size());
  std::vector<std::thread> team;
  for (std::size_t t = 0; t < speeds.size(); ++t) {
    team.emplace_back([&, t] {
      speeds[t] = copy_for(seconds, ready, copiers[t], batch_count, t, speeds.size());
    });
  }
  for (std::thread& thread : team) thread.join();
  return std::accumulate(speeds.begin(), speeds.end(), 0.0);
}

}  // namespace fastload
