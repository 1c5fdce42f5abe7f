// Files and tables for the tests, with bytes that tell where they belong.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "storage/table.h"

namespace fixtures {

using fastload::Column;
using fastload::ColumnGroup;
using fastload::FileCache;
using fastload::Io;
using fastload::Source;
using fastload::Table;
using Bytes = std::vector<std::byte>;
using Indices = std::vector<std::int64_t>;

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "fastload XXXXXX").string();
    CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  CHECK(file.good());
}

// Writes the file back and drops it from the page cache.
inline void make_cold(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  CHECK(file >= 0 && fsync(file) == 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
  close(file);
}

// Byte `at` of row `row` of a column.
inline std::byte expected(std::size_t column, std::int64_t row, std::int64_t at) {
  const auto mixed = (static_cast<std::uint64_t>(row) * 1'000'003 + static_cast<std::uint64_t>(at) +
                      column * 77'777) *
                     0x9E3779B97F4A7C15ULL;
  return static_cast<std::byte>(mixed >> 56);
}

struct ColumnSpec {
  std::int64_t row_bytes;
  std::int64_t gap = 0;     // bytes between rows
  std::int64_t header = 0;  // bytes before row 0
  bool in_memory = false;
  bool boolean = false;
};

// A table of one group over files (or memory) that hold expected() bytes.
class TestTable {
 public:
  TestTable(const Folder& folder, const std::vector<std::int64_t>& shard_rows,
            const std::vector<ColumnSpec>& columns, Io io = Io::kAuto, const Indices* map = nullptr,
            fastload::OpenFileLimits limits = fastload::OpenFileLimits::of_this_process(),
            std::shared_ptr<const fastload::IndexMap> computed = nullptr)
      : specs_(columns), computed_(computed) {
    auto files = std::make_unique<FileCache>(io, limits);
    std::vector<Source> sources;
    std::vector<Column> described;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const ColumnSpec& spec = columns[c];
      const std::int64_t stride = spec.row_bytes + spec.gap;
      Column column{"field" + std::to_string(c), spec.row_bytes, stride, {}, {}, spec.boolean, 0};
      std::int64_t first = 0;
      for (std::size_t s = 0; s < shard_rows.size(); ++s) {
        Bytes bytes = shard_bytes(c, spec, first, shard_rows[s]);
        first += shard_rows[s];
        column.sources.push_back(static_cast<std::int32_t>(sources.size()));
        column.offsets.push_back(spec.header);
        if (spec.in_memory) {
          memory_.push_back(std::make_unique<Bytes>(std::move(bytes)));
          sources.push_back({-1, *memory_.back()});
          continue;
        }
        const std::string path =
            folder / ("column" + std::to_string(c) + " shard" + std::to_string(s));
        write_file(path, bytes);
        paths.push_back(path);
        const auto size = static_cast<std::int64_t>(bytes.size());
        sources.push_back({files->add(path, size), {}});
      }
      described.push_back(std::move(column));
    }
    const Indices rows_map = map != nullptr ? *map : Indices();
    map_ = rows_map;
    std::vector<ColumnGroup> groups;
    groups.emplace_back(shard_rows, map_, map != nullptr);
    mapped_ = map != nullptr;
    table = std::make_shared<const Table>(std::move(files), std::move(sources), std::move(groups),
                                          std::move(described), std::move(computed));
  }

  // Whether `data` holds the samples of a column.
  void check_samples(std::size_t column, const Indices& indices, const std::byte* data) const {
    const ColumnSpec& spec = specs_[column];
    for (std::int64_t index : indices) {
      if (computed_ != nullptr) computed_->rows({&index, 1}, {&index, 1});
      const std::int64_t row = mapped_ ? map_[static_cast<std::size_t>(index)] : index;
      for (std::int64_t at = 0; at < spec.row_bytes; ++at, ++data) {
        const std::byte right = expected(column, row, at);
        CHECK(*data == (spec.boolean ? std::byte{right != std::byte{0}} : right));
      }
    }
  }

  std::shared_ptr<const Table> table;
  std::vector<std::string> paths;  // column by column, shard by shard

 private:
  static Bytes shard_bytes(std::size_t c, const ColumnSpec& spec, std::int64_t first,
                           std::int64_t rows) {
    const std::int64_t stride = spec.row_bytes + spec.gap;
    const std::int64_t size = spec.header + (rows > 0 ? (rows - 1) * stride + spec.row_bytes : 0);
    Bytes bytes(static_cast<std::size_t>(size), std::byte{0xEE});
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t at = 0; at < spec.row_bytes; ++at) {
        bytes[static_cast<std::size_t>(spec.header + row * stride + at)] =
            expected(c, first + row, at);
      }
    }
    return bytes;
  }

  std::vector<ColumnSpec> specs_;
  std::shared_ptr<const fastload::IndexMap> computed_;
  std::vector<std::unique_ptr<Bytes>> memory_;
  Indices map_;
  bool mapped_ = false;
};

}  // namespace fixtures
