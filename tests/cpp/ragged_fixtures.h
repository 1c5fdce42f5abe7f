// Tables of one ragged column, with bytes that tell where they belong.
#pragma once

#include <random>
#include <span>

#include "batch/gather.h"
#include "batch/spans.h"
#include "fixtures.h"

namespace fixtures {

using fastload::Bounds;
using fastload::Padding;
using fastload::Spans;
using fastload::SpanTable;
using fastload::Stored;

struct RaggedSpec {
  std::int64_t element_bytes = 1;
  bool in_memory = false;
  bool boolean = false;
  Stored stored = Stored::kAsDelivered;
};

// Shards whose samples have the given lengths, in a file of values and one of bounds each, both of
// which begin at an odd byte. Byte b of element e of a shard is expected(shard, e, b).
class RaggedTable {
 public:
  static constexpr std::int64_t kHeader = 5;

  RaggedTable(const Folder& folder, std::vector<Indices> lengths, const RaggedSpec& spec,
              Io io = Io::kAuto)
      : spec_(spec) {
    files_ = std::make_unique<FileCache>(io);
    const std::int64_t bytes = spec.element_bytes;
    Column column{"text", bytes, bytes, {}, {}, spec.boolean, 0, nullptr, spec.stored};
    Bounds bounds{{"text", 16, 8, {}, {}, false, 0}, {}};
    std::vector<std::int64_t> shard_rows;
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      Indices ends{0};
      for (std::int64_t length : lengths[s]) {
        samples_.push_back(delivered(s, ends.back(), ends.back() + length));
        lengths_.push_back(length);
        ends.push_back(ends.back() + length);
      }
      shard_rows.push_back(static_cast<std::int64_t>(lengths[s].size()));
      bounds.totals.push_back(ends.back());
      column.sources.push_back(
          add(folder / ("values" + std::to_string(s)), values(s, ends.back())));
      column.offsets.push_back(kHeader);
      Bytes content(kHeader);
      const auto bytes_of_ends = std::as_bytes(std::span(ends));
      content.insert(content.end(), bytes_of_ends.begin(), bytes_of_ends.end());
      bounds.column.sources.push_back(add(folder / ("bounds" + std::to_string(s)), content));
      bounds.column.offsets.push_back(kHeader);
    }
    column.bounds = std::make_shared<const Bounds>(std::move(bounds));
    std::vector<ColumnGroup> groups;
    groups.emplace_back(shard_rows, Indices(), false);
    table = std::make_shared<const Table>(std::move(files_), std::move(sources_), std::move(groups),
                                          std::vector<Column>{column});
  }

  const Column& column() const { return table->columns()[0]; }
  std::int64_t length(std::int64_t index) const {
    return lengths_[static_cast<std::size_t>(index)];
  }

  // The bytes of a sample as they are delivered.
  const Bytes& sample(std::int64_t index) const {
    return samples_[static_cast<std::size_t>(index)];
  }

  // A batch side by side, or padded to `padding`.
  Bytes batch(const Indices& indices, const Padding* padding) const {
    Bytes out;
    for (std::int64_t index : indices) {
      const Bytes& one = sample(index);
      out.insert(out.end(), one.begin(), one.end());
      for (std::int64_t e = length(index); padding != nullptr && e < padding->length; ++e) {
        out.insert(out.end(), padding->element.begin(), padding->element.end());
      }
    }
    return out;
  }

  std::shared_ptr<const Table> table;
  std::vector<std::string> paths;  // values and bounds of each shard

 private:
  std::int32_t add(const std::string& path, Bytes bytes) {
    if (spec_.in_memory) {
      memory_.push_back(std::make_unique<Bytes>(std::move(bytes)));
      sources_.push_back({-1, *memory_.back()});
    } else {
      write_file(path, bytes);
      paths.push_back(path);
      sources_.push_back({files_->add(path, static_cast<std::int64_t>(bytes.size())), {}});
    }
    return static_cast<std::int32_t>(sources_.size() - 1);
  }

  Bytes values(std::size_t shard, std::int64_t total) const {
    Bytes bytes(kHeader, std::byte{0xEE});
    bytes.reserve(static_cast<std::size_t>(kHeader + total * spec_.element_bytes));
    for (std::int64_t e = 0; e < total; ++e) {
      for (std::int64_t b = 0; b < spec_.element_bytes; ++b) {
        bytes.push_back(expected(shard, e, b));
      }
    }
    return bytes;
  }

  // Of elements `first` to `end` of a shard.
  Bytes delivered(std::size_t shard, std::int64_t first, std::int64_t end) const {
    Bytes out;
    for (std::int64_t e = first; e < end; ++e) {
      for (std::int64_t b = 0; b < spec_.element_bytes; ++b) {
        const std::byte byte = expected(shard, e, b);
        out.push_back(spec_.boolean ? std::byte{byte != std::byte{0}} : byte);
        const bool number_ends =
            spec_.stored == Stored::kU16 && b % 2 == 1;  // the one kind that these tests store
        if (number_ends) out.insert(out.end(), 6, std::byte{0});
      }
    }
    return out;
  }

  RaggedSpec spec_;
  std::unique_ptr<FileCache> files_;
  std::vector<Source> sources_;
  std::vector<std::unique_ptr<Bytes>> memory_;
  std::vector<Bytes> samples_;
  Indices lengths_;
};

// `rows` lengths up to `longest`, every fourth of them 0.
inline Indices random_lengths(std::size_t rows, std::uint64_t longest, unsigned seed) {
  std::mt19937_64 random(seed);
  Indices lengths(rows);
  for (std::int64_t& length : lengths) {
    length = random() % 4 == 0 ? 0 : static_cast<std::int64_t>(random() % (longest + 1));
  }
  return lengths;
}

}  // namespace fixtures
