#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "batch/copy.h"
#include "batch/gather.h"
#include "engine_fixtures.h"
#include "ragged_fixtures.h"

using namespace fastload;
using namespace fixtures;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void check_gather(Gatherer& gatherer, const RaggedTable& data, const Indices& indices,
                  Reading reading) {
  const Column& column = data.column();
  SpanTable table;
  gatherer.read_spans(column, indices, table, reading);
  const Spans spans = table.spans();
  CHECK_EQUAL(spans.count(), indices.size());
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    CHECK_EQUAL(spans.length(i), data.length(indices[i]));
    longest = std::max(longest, spans.length(i));
  }
  const auto check = [&](const Padding* padding) {
    const Bytes right = data.batch(indices, padding);
    Bytes out(right.size() + 64, std::byte{0x5B});
    gatherer.gather_ragged(column, indices, spans, padding, out.data(), reading);
    CHECK(std::equal(right.begin(), right.end(), out.begin()));
    CHECK(std::count(out.begin() + static_cast<std::ptrdiff_t>(right.size()), out.end(),
                     std::byte{0x5B}) == 64);
  };
  check(nullptr);
  const auto element = static_cast<std::size_t>(column.delivered_bytes());
  Bytes uneven(element, std::byte{0});
  if (element > 0) uneven.back() = std::byte{1};
  for (const Bytes& pad : {Bytes(element, std::byte{1}), uneven}) {
    const Padding padding{longest + 3, pad};
    check(&padding);
  }
}

void check_everything(const RaggedTable& data) {
  const std::int64_t rows = data.table->rows();
  Gatherer gatherer(*data.table);
  Indices all, backwards, random;
  for (std::int64_t i = 0; i < rows; ++i) all.push_back(i);
  backwards.assign(all.rbegin(), all.rend());
  for (std::int64_t i = 0; i < 20; ++i) random.push_back(i * i * 7919 % rows);
  for (Reading reading : {Reading::kMapped, Reading::kCold}) {
    check_gather(gatherer, data, {}, reading);
    for (const Indices& indices : {all, backwards, random}) {
      check_gather(gatherer, data, indices, reading);
    }
    check_gather(gatherer, data, {rows - 1, rows - 1, 0, 0}, reading);
    SpanTable spans;
    gatherer.read_spans(data.column(), all, spans, reading);
    gatherer.resolver().is_resident({data.column(), all, spans.spans()});
    gatherer.resolver().will_need({data.column(), all, spans.spans()});
    gatherer.resolver().will_need({data.column().bounds->column, all});
  }
}

const std::vector<RaggedSpec> kSpecs{
    {.element_bytes = 1},
    {.element_bytes = 1, .boolean = true},
    {.element_bytes = 12},
    {.element_bytes = 0},
    {.element_bytes = 8, .in_memory = true},
    {.element_bytes = 4, .stored = Stored::kU16},
    {.element_bytes = 2, .in_memory = true, .stored = Stored::kU16},
};

}  // namespace

int main() {
  alarm(240);

  check::promise("any shards, element sizes and ways of reading; plain and padded", [] {
    for (const RaggedSpec& spec : kSpecs) {
      for (Io io : {Io::kMmap, Io::kPread}) {
        const Folder folder;
        check_everything(RaggedTable(folder, {random_lengths(31, 40, 1)}, spec, io));
        check_everything(RaggedTable(
            folder, {{}, random_lengths(7, 9, 2), {}, {0, 0}, random_lengths(20, 100, 3)}, spec,
            io));
        check_everything(RaggedTable(folder, {{0}, {0, 0}}, spec, io));
      }
    }
  });

  check::promise("small samples and large ones side by side, cold too", [] {
    for (std::int64_t element : {1, 4}) {
      for (Stored stored : {Stored::kAsDelivered, Stored::kU16}) {
        if (element == 1 && stored == Stored::kU16) continue;
        for (Io io : {Io::kMmap, Io::kPread}) {
          const Folder folder;
          const RaggedTable data(folder, {{3, 30'000, 0, 5'000, 50}, {6'000, 1, 1, 1, 17'001}},
                                 {.element_bytes = element, .stored = stored}, io);
          for (const std::string& path : data.paths) make_cold(path);
          check_everything(data);
        }
      }
    }
  });

  check::promise("every copy kernel gives the same batch", [] {
    const Folder folder, other;
    const RaggedTable plain(folder, {random_lengths(20, 7'000, 4)}, {.element_bytes = 3});
    const RaggedTable tokens(other, {random_lengths(20, 4'000, 5)},
                             {.element_bytes = 2, .stored = Stored::kU16});
    for (const CopyKernel& kernel : copy_kernels()) {
      set_copy_kernel(kernel.name);
      check_everything(plain);
      check_everything(tokens);
    }
    set_copy_kernel("auto");
  });

  check::promise("values cut short in use: OsError with file, field and sample", [] {
    for (Stored stored : {Stored::kAsDelivered, Stored::kU16}) {
      const Folder folder;
      const RaggedTable data(folder, {Indices(64, 2048)}, {.element_bytes = 2, .stored = stored},
                             Io::kMmap);
      Gatherer gatherer(*data.table);
      check_gather(gatherer, data, {63, 0, 1}, Reading::kMapped);
      std::filesystem::resize_file(data.paths[0], 20 * 4096);
      for (Reading reading : {Reading::kMapped, Reading::kCold}) {
        for (const Indices& indices : {Indices{18, 19, 20, 21}, Indices{3, 40, 5}}) {
          SpanTable spans;
          gatherer.read_spans(data.column(), indices, spans, reading);
          Bytes out(indices.size() * 2048 * 8);
          const std::string message =
              CHECK_THROWS(OsError, gatherer.gather_ragged(data.column(), indices, spans.spans(),
                                                           nullptr, out.data(), reading));
          const bool first =
              contains(message, "'text' of sample " + std::to_string(indices[1] == 40 ? 40 : 19));
          // The page of the last whole sample is still there, its last 5 bytes are beyond it.
          CHECK(first || contains(message, "'text' of sample 20"));
          CHECK(contains(message, "81920"));
        }
      }
    }
  });

  check::promise("bounds that are wrong are a FormatError, and nothing is read by them", [] {
    const Folder folder;
    const RaggedTable data(folder, {{4, 4, 4, 4}}, {});
    for (std::int64_t bad :
         {std::int64_t{-1}, std::int64_t{3}, std::int64_t{17}, INT64_MAX, INT64_MIN}) {
      std::fstream file(data.paths[1], std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(RaggedTable::kHeader + 2 * 8);
      file.write(reinterpret_cast<const char*>(&bad), 8);
      file.close();
      Gatherer gatherer(*data.table);
      SpanTable spans;
      const std::string message = CHECK_THROWS(
          FormatError, gatherer.read_spans(data.column(), Indices{3, 1}, spans, Reading::kMapped));
      CHECK(contains(message, "'text' of sample 1") && contains(message, data.paths[1]));
      gatherer.read_spans(data.column(), Indices{3, 0}, spans, Reading::kMapped);
    }
  });

  check::promise("0 and 3 workers deliver the same batches, plain and padded, large and small", [] {
    for (std::uint64_t longest : {30, 250'000}) {
      for (Stored stored : {Stored::kAsDelivered, Stored::kU16}) {
        for (Io io : {Io::kMmap, Io::kPread}) {
          const Folder folder;
          const RaggedTable data(folder, {random_lengths(40, longest, 6), {}, {0, 5, 1}},
                                 {.element_bytes = 2, .stored = stored}, io);
          const Bytes element(static_cast<std::size_t>(data.column().delivered_bytes()),
                              std::byte{7});
          for (int workers : {0, 3}) {
            for (bool padded : {false, true}) {
              EngineOptions options{workers, 3};
              if (padded) options.paddings.push_back(PadTo{8, element});
              const EpochSpec spec = shuffled(43, 16);
              Engine engine(data.table, new_pool(), plan_order(spec), options);
              const EpochPlan plan(spec);
              Indices indices;
              for (std::int64_t k = 0; k < plan.batch_count(); ++k) {
                const auto task = next_batch(engine);
                plan.indices(k, indices);
                CHECK(task->indices == indices);
                CHECK_EQUAL(task->slots.size(), 2);
                const Padding padding{task->layout.padded_lengths[0], element};
                if (padded) CHECK_EQUAL(padding.length % 8, 0);
                const Bytes right = data.batch(indices, padded ? &padding : nullptr);
                CHECK_EQUAL(task->slots[0].bytes(), right.size());
                CHECK(std::equal(right.begin(), right.end(), task->slots[0].data()));
                std::int64_t offset = 0;
                for (std::size_t i = 0; i <= indices.size(); ++i) {
                  if (padded && i == indices.size()) break;
                  std::int64_t got = 0;
                  std::memcpy(&got, task->slots[1].data() + i * 8, 8);
                  CHECK_EQUAL(got, padded ? data.length(indices[i]) : offset);
                  if (!padded && i < indices.size()) offset += data.length(indices[i]);
                }
              }
              CHECK(next_batch(engine) == nullptr);
            }
          }
        }
      }
    }
  });

  check::promise("threads that meet truncated values all get an error, none dies", [] {
    const Folder folder;
    const RaggedTable data(folder, {Indices(256, 8192)}, {}, Io::kMmap);
    std::atomic<int> errors{0};
    std::vector<std::thread> team;
    for (int t = 0; t < 4; ++t) {
      team.emplace_back([&, t] {
        Gatherer gatherer(*data.table);
        Bytes out(64 * 8192);
        SpanTable spans;
        for (std::int64_t i = 0; i < 20 || errors.load() < 40; ++i) {
          Indices indices(64);
          for (std::size_t k = 0; k < 64; ++k) {
            indices[k] = (static_cast<std::int64_t>(k) * 37 + i * 11 + t) % 256;
          }
          try {
            gatherer.read_spans(data.column(), indices, spans, Reading::kMapped);
            gatherer.gather_ragged(data.column(), indices, spans.spans(), nullptr, out.data(),
                                   Reading::kMapped);
          } catch (const OsError&) {
            ++errors;
          }
          if (t == 0 && i == 10) std::filesystem::resize_file(data.paths[0], 100 * 8192);
        }
      });
    }
    for (std::thread& thread : team) thread.join();
  });

  check::promise("batches of varying sizes use their slots again", [] {
    const Folder folder;
    const RaggedTable data(folder, {random_lengths(3000, 4000, 7)}, {.element_bytes = 8},
                           Io::kMmap);
    const auto pool = new_pool();
    std::int64_t warm = 0;
    for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
      EngineOptions options{1, 4};
      options.paddings.push_back(PadTo{1, Bytes(8)});
      Engine engine(data.table, pool, plan_order(shuffled(3000, 16, epoch)), options);
      while (next_batch(engine) != nullptr) {
      }
      if (epoch == 0) warm = pool->stats().allocation_count;
    }
    CHECK(warm <= 60);
    CHECK(pool->stats().allocation_count <= warm + 20);  // of 752 batches
  });
}
