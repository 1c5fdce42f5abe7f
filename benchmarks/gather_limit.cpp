// How fast can threads gather rows of mapped files, if they do nothing else? The limit that
// bench_loader.py compares with. It shares no code with csrc, so that a change of the loader cannot
// move it.
//
//   gather_limit BATCH THREADS ROWS (FILE OFFSET ROW_BYTES)...
//
// Each FILE has ROWS rows of ROW_BYTES bytes from OFFSET on. Each thread visits its own part of one
// random permutation of the rows, in batches of BATCH rows, and writes each batch into the next of
// its private slots. The program prints "ready", then answers each input line "KERNEL SECONDS" by
// two numbers: samples per second of all threads, and microseconds of CPU per batch. KERNEL is
// "memcpy", "prefetch" (memcpy, with rows requested ahead) or "stream" (the same with streaming
// stores, for rows of whole cache lines).
//
// Build: c++ -std=c++20 -O3 -march=native -pthread gather_limit.cpp -o gather_limit
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSlots = 8;
constexpr std::size_t kSlotAlignment = std::size_t{2} << 20;  // one huge page
constexpr std::size_t kLine = 64;
constexpr std::size_t kAheadBytes = 12 << 10;  // best of 1 to 12 KiB at 512 B; little matters
constexpr std::size_t kMinAhead = 1;
constexpr std::size_t kMaxAhead = 24;
constexpr std::size_t kMaxPrefetched = 8 * kLine;  // of a row; the hardware follows the rest

[[noreturn]] void fail(const std::string& what) {
  std::perror(what.c_str());
  std::exit(1);
}

std::size_t align_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

struct Column {
  const char* rows;
  std::size_t row_bytes;
};

Column map_column(const char* path, std::size_t offset, std::size_t rows, std::size_t row_bytes) {
  const int file = open(path, O_RDONLY);
  struct stat info = {};
  if (file < 0 || fstat(file, &info) != 0) fail(path);
  const std::size_t bytes = offset + rows * row_bytes;
  if (static_cast<std::size_t>(info.st_size) < bytes) fail(std::string(path) + " is too short");
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
  if (data == MAP_FAILED) fail(path);
  close(file);
  return {static_cast<const char*>(data) + offset, row_bytes};
}

char* allocate(std::size_t bytes) {
  const std::size_t size = align_up(bytes, kSlotAlignment);
  void* data = std::aligned_alloc(kSlotAlignment, size);
  if (data == nullptr) fail("slots");
  madvise(data, size, MADV_HUGEPAGE);
  std::memset(data, 1, size);
  return static_cast<char*>(data);
}

// `kBytes`: the size of a row; 0: `row_bytes` says it.
template <std::size_t kBytes>
void copy_row(char* out, const char* row, std::size_t row_bytes) {
  std::memcpy(out, row, kBytes != 0 ? kBytes : row_bytes);
}

// REQUIRES: a row is whole lines, and `out` is the start of a line.
void stream_row(char* out, const char* row, std::size_t row_bytes) {
#if defined(__AVX512F__)
  for (std::size_t at = 0; at < row_bytes; at += kLine) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at), _mm512_loadu_si512(row + at));
  }
#elif defined(__AVX2__)
  for (std::size_t at = 0; at < row_bytes; at += 32) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + at));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(out + at), half);
  }
#else
  std::memcpy(out, row, row_bytes);
#endif
}

enum class Kernel { memcpy, prefetch, stream };

// Writes `count` rows side by side. `indices` may be read up to kMaxAhead items past the last one.
template <Kernel kKernel, std::size_t kBytes>
void gather_rows(const Column& column, const std::int64_t* indices, std::size_t count, char* out) {
  const std::size_t row_bytes = kBytes != 0 ? kBytes : column.row_bytes;
  const std::size_t ahead = std::clamp(kAheadBytes / row_bytes, kMinAhead, kMaxAhead);
  const std::size_t prefetched = std::min(row_bytes, kMaxPrefetched);
  for (std::size_t i = 0; i < count; ++i, out += row_bytes) {
    if constexpr (kKernel != Kernel::memcpy) {
      const char* next = column.rows + static_cast<std::size_t>(indices[i + ahead]) * row_bytes;
      for (std::size_t at = 0; at < prefetched; at += kLine) __builtin_prefetch(next + at);
      __builtin_prefetch(next + prefetched - 1);
    }
    const char* row = column.rows + static_cast<std::size_t>(indices[i]) * row_bytes;
    if (kKernel == Kernel::stream && row_bytes % kLine == 0) {
      stream_row(out, row, row_bytes);
    } else {
      copy_row<kBytes>(out, row, row_bytes);
    }
  }
}

template <Kernel kKernel>
void gather(const Column& column, const std::int64_t* indices, std::size_t count, char* out) {
  switch (column.row_bytes) {
    case 8:
      return gather_rows<kKernel, 8>(column, indices, count, out);
    case 64:
      return gather_rows<kKernel, 64>(column, indices, count, out);
    case 512:
      return gather_rows<kKernel, 512>(column, indices, count, out);
    default:
      return gather_rows<kKernel, 0>(column, indices, count, out);
  }
}

class Gatherer {
 public:
  Gatherer(std::vector<Column> columns, const std::int64_t* indices, std::size_t batches,
           std::size_t batch)
      : columns_(std::move(columns)), indices_(indices), batches_(batches), batch_(batch) {
    std::size_t slot_bytes = 0;
    for (const Column& column : columns_) {
      offsets_.push_back(slot_bytes);
      slot_bytes += align_up(batch * column.row_bytes, 4096);
    }
    for (std::size_t i = 0; i < kSlots; ++i) slots_.push_back(allocate(slot_bytes));
  }

  // Gathers for so many seconds; returns batches per second.
  template <Kernel kKernel>
  double run(double seconds) {
    const Clock::time_point start = Clock::now();
    const std::size_t chunk = std::max<std::size_t>(1, (std::size_t{1} << 20) / batch_bytes());
    for (std::size_t done = 0;;) {
      for (std::size_t i = 0; i < chunk; ++i) gather_next<kKernel>();
      done += chunk;
      const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
      if (elapsed >= seconds) return static_cast<double>(done) / elapsed;
    }
  }

  std::size_t batch() const { return batch_; }
  // Batches gathered since the start.
  std::size_t done() const { return next_; }

 private:
  std::size_t batch_bytes() const {
    std::size_t bytes = 0;
    for (const Column& column : columns_) bytes += batch_ * column.row_bytes;
    return bytes;
  }

  template <Kernel kKernel>
  void gather_next() {
    char* const slot = slots_[next_ % kSlots];
    const std::int64_t* const indices = indices_ + (next_ % batches_) * batch_;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      gather<kKernel>(columns_[c], indices, batch_, slot + offsets_[c]);
    }
#if defined(__AVX2__)
    if (kKernel == Kernel::stream) _mm_sfence();
#endif
    ++next_;
  }

  const std::vector<Column> columns_;
  const std::int64_t* const indices_;
  const std::size_t batches_;
  const std::size_t batch_;
  std::vector<std::size_t> offsets_;
  std::vector<char*> slots_;
  std::size_t next_ = 0;
};

struct Result {
  double samples_per_s = 0;
  double cpu_us_per_batch = 0;
};

Result measure(std::vector<Gatherer>& gatherers, const std::string& kernel, double seconds) {
  std::barrier<> ready(static_cast<std::ptrdiff_t>(gatherers.size()));
  std::vector<double> rates(gatherers.size());
  std::vector<std::thread> threads;
  std::size_t batches = 0;
  for (const Gatherer& gatherer : gatherers) batches -= gatherer.done();
  const std::clock_t start = std::clock();
  for (std::size_t t = 0; t < gatherers.size(); ++t) {
    threads.emplace_back([&, t] {
      ready.arrive_and_wait();
      Gatherer& gatherer = gatherers[t];
      rates[t] = kernel == "memcpy"     ? gatherer.run<Kernel::memcpy>(seconds)
                 : kernel == "prefetch" ? gatherer.run<Kernel::prefetch>(seconds)
                                        : gatherer.run<Kernel::stream>(seconds);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double cpu_us = 1e6 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  for (const Gatherer& gatherer : gatherers) batches += gatherer.done();
  const double rate = std::accumulate(rates.begin(), rates.end(), 0.0);
  return {rate * static_cast<double>(gatherers[0].batch()), cpu_us / static_cast<double>(batches)};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7 || argc % 3 != 1) {
    std::cerr << "usage: gather_limit BATCH THREADS ROWS (FILE OFFSET ROW_BYTES)...\n";
    return 2;
  }
  const std::size_t batch = std::stoul(argv[1]);
  const std::size_t threads = std::stoul(argv[2]);
  const std::size_t rows = std::stoul(argv[3]);
  const std::size_t batches = threads == 0 || batch == 0 ? 0 : rows / threads / batch;
  if (batches == 0) {
    std::cerr << "each thread needs one whole batch\n";
    return 2;
  }
  std::vector<Column> columns;
  for (int i = 4; i < argc; i += 3) {
    columns.push_back(map_column(argv[i], std::stoul(argv[i + 1]), rows, std::stoul(argv[i + 2])));
  }
  std::vector<std::int64_t> indices(rows);
  std::iota(indices.begin(), indices.end(), 0);
  std::shuffle(indices.begin(), indices.end(), std::mt19937_64(0));
  for (std::size_t i = 0; i < kMaxAhead; ++i) indices.push_back(indices[i]);
  std::vector<Gatherer> gatherers;
  for (std::size_t t = 0; t < threads; ++t) {
    gatherers.emplace_back(columns, indices.data() + t * batches * batch, batches, batch);
  }
  std::cout << "ready" << std::endl;
  std::string kernel;
  for (double seconds = 0; std::cin >> kernel >> seconds;) {
    if (kernel != "memcpy" && kernel != "prefetch" && kernel != "stream") {
      std::cerr << "no kernel '" << kernel << "'\n";
      return 2;
    }
    const Result result = measure(gatherers, kernel, seconds);
    std::cout << result.samples_per_s << " " << result.cpu_us_per_batch << std::endl;
  }
}
