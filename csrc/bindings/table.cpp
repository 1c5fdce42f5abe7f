#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "batch/block_check.h"
#include "batch/gather.h"
#include "bindings/bindings.h"
#include "bindings/exit.h"
#include "engine/measure.h"

namespace fastload::bindings {
namespace {

// Below this the GIL is kept: if another Python thread is busy, getting it back takes up to 5 ms
// (the switch interval), longer than copying a small sample.
constexpr std::int64_t kUnlockBytes = 64 << 10;

Io io_named(const std::string& name) {
  if (name == "auto") return Io::kAuto;
  if (name == "mmap") return Io::kMmap;
  if (name == "pread") return Io::kPread;
  throw py::value_error("io must be 'auto', 'mmap' or 'pread', got '" + name + "'");
}

Stored stored_named(const std::string& name) {
  if (name.empty()) return Stored::kAsDelivered;
  if (name == "uint8") return Stored::kU8;
  if (name == "int8") return Stored::kI8;
  if (name == "uint16") return Stored::kU16;
  if (name == "int16") return Stored::kI16;
  if (name == "uint32") return Stored::kU32;
  if (name == "int32") return Stored::kI32;
  throw py::value_error(
      "stored must be '' or one of uint8, int8, uint16, int16, uint32 and int32, got '" + name +
      "'");
}

py::index_error bad_source(std::int64_t number, std::size_t count) {
  return py::index_error("source " + std::to_string(number) + " is out of range for " +
                         std::to_string(count) + " sources");
}

// Collects the parts of a table. One thread at a time.
class TableBuilder {
 public:
  explicit TableBuilder(const std::string& io)
      : files_(std::make_unique<FileCache>(io_named(io))) {}

  std::int32_t add_file(const std::variant<py::str, py::bytes>& path, std::int64_t size_bytes,
                        const std::optional<std::tuple<dev_t, ino_t, std::int64_t>>& identity) {
    check_unbuilt();
    std::string name;
    if (const auto* bytes = std::get_if<py::bytes>(&path)) {
      name = *bytes;
    } else {  // as os.fsencode does
      PyObject* encoded = PyUnicode_EncodeFSDefault(std::get<py::str>(path).ptr());
      if (encoded == nullptr) throw py::error_already_set();
      name = py::reinterpret_steal<py::bytes>(encoded);
    }
    if (name.find('\0') != std::string::npos) throw py::value_error("embedded null byte in path");
    if (size_bytes < 0)
      throw py::value_error("size_bytes of a file must not be negative, got " +
                            std::to_string(size_bytes));
    std::optional<FileIdentity> known;
    if (identity) known = std::make_from_tuple<FileIdentity>(*identity);
    sources_.push_back({files_->add(std::move(name), size_bytes, known), {}, {}});
    return static_cast<std::int32_t>(sources_.size() - 1);
  }

  std::int32_t add_memory(py::object owner, std::uintptr_t address, std::size_t size_bytes) {
    check_unbuilt();
    owners_.append(std::move(owner));
    sources_.push_back({-1, {reinterpret_cast<const std::byte*>(address), size_bytes}, {}});
    return static_cast<std::int32_t>(sources_.size() - 1);
  }

  std::int32_t add_group(const IndexArray& shard_rows, std::optional<IndexArray> index_map) {
    check_unbuilt();
    std::span<const std::int64_t> map;
    if (index_map) {
      map = as_span(*index_map);
      owners_.append(*index_map);
    }
    groups_.emplace_back(as_span(shard_rows), map, index_map.has_value());
    return static_cast<std::int32_t>(groups_.size() - 1);
  }

  void add_column(std::int32_t group, std::string name, std::int64_t row_bytes,
                  std::int64_t row_stride, const IndexArray& sources, const IndexArray& offsets,
                  bool boolean, const std::string& stored) {
    columns_.push_back(
        column(group, std::move(name), row_bytes, row_stride, sources, offsets, boolean));
    columns_.back().stored = stored_named(stored);
  }

  // `strides` has a line for each shard: bytes from one row to the next, then of each axis of
  // `shape`.
  void add_strided_column(std::int32_t group, std::string name, const IndexArray& shape,
                          std::int64_t item_bytes, const IndexArray& strides,
                          const IndexArray& sources, const IndexArray& offsets, bool boolean) {
    const auto lengths = as_span(shape);
    const auto numbers = as_span(strides);
    const std::size_t width = lengths.size() + 1;
    std::int64_t row_bytes = item_bytes;
    for (std::int64_t length : lengths) row_bytes = checked_mul(row_bytes, length);
    Column strided = column(group, std::move(name), row_bytes, 0, sources, offsets, boolean);
    if (numbers.size() % width != 0) {
      throw py::value_error("strides must have a multiple of " + std::to_string(width) +
                            " numbers, got " + std::to_string(numbers.size()));
    }
    for (std::size_t at = 0; at < numbers.size(); at += width) {
      strided.strides.push_back(RowStrides::of(lengths, numbers.subspan(at, width), item_bytes));
    }
    columns_.push_back(std::move(strided));
  }

  void add_ragged_column(std::int32_t group, std::string name, std::int64_t element_bytes,
                         const IndexArray& sources, const IndexArray& offsets,
                         const IndexArray& bounds_sources, const IndexArray& bounds_offsets,
                         const IndexArray& totals, bool boolean, const std::string& stored) {
    constexpr std::int64_t kBytes = sizeof(std::int64_t);
    const auto shard_totals = as_span(totals);
    Bounds bounds{column(group, name, 2 * kBytes, kBytes, bounds_sources, bounds_offsets, false),
                  {shard_totals.begin(), shard_totals.end()}};
    Column values =
        column(group, std::move(name), element_bytes, element_bytes, sources, offsets, boolean);
    values.bounds = std::make_shared<const Bounds>(std::move(bounds));
    values.stored = stored_named(stored);
    columns_.push_back(std::move(values));
  }

  void add_checksums(std::int32_t source, std::int64_t begin, std::int64_t end,
                     std::int64_t block_bytes, std::int64_t crcs) {
    check_unbuilt();
    if (source < 0 || static_cast<std::size_t>(source) >= sources_.size()) {
      throw bad_source(source, sources_.size());
    }
    sources_[static_cast<std::size_t>(source)].blocks = {begin, end, block_bytes, crcs};
  }

  PyTable build(const py::object& index_map) {
    check_unbuilt();
    auto map = index_map.is_none() ? nullptr : index_map_of(index_map);
    return {
        make_shared_unlocked<const Table>(std::move(files_), std::move(sources_),
                                          std::move(groups_), std::move(columns_), std::move(map)),
        std::move(owners_)};
  }

 private:
  void check_unbuilt() const {
    if (files_ == nullptr) throw py::value_error("this table is already built");
  }

  Column column(std::int32_t group, std::string name, std::int64_t row_bytes,
                std::int64_t row_stride, const IndexArray& sources, const IndexArray& offsets,
                bool boolean) const {
    check_unbuilt();
    if (group < 0 || static_cast<std::size_t>(group) >= groups_.size()) {
      throw py::index_error("group " + std::to_string(group) + " is out of range for " +
                            std::to_string(groups_.size()) + " groups");
    }
    Column column{std::move(name), row_bytes, row_stride, {}, {}, boolean, group};
    for (std::int64_t source : as_span(sources)) {
      if (source < 0 || static_cast<std::size_t>(source) >= sources_.size()) {
        throw bad_source(source, sources_.size());
      }
      column.sources.push_back(static_cast<std::int32_t>(source));
    }
    const auto span = as_span(offsets);
    column.offsets.assign(span.begin(), span.end());
    return column;
  }

  std::unique_ptr<FileCache> files_;
  std::vector<Source> sources_;
  std::vector<ColumnGroup> groups_;
  std::vector<Column> columns_;
  py::list owners_;
};

// Returns a copy of the indices, which other threads cannot change, and checks it.
std::vector<std::int64_t> checked_copy(const Table& table, const IndexArray& indices) {
  table.check_process();
  const auto span = as_span(indices);
  std::vector<std::int64_t> samples(span.begin(), span.end());
  table.check_indices(samples);
  return samples;
}

// Releases the GIL, since checks may read much more than the samples.
void check_rows(BlockCheck& check, std::vector<std::int64_t>& samples) {
  if (check.idle()) return;
  const Unlocked unlocked;
  check.check_rows(samples, nullptr);
}

// Returns the memory of an array for the samples of a column. Throws ValueError for another size.
std::byte* destination(const Column& column, const py::array& array, std::int64_t bytes) {
  if (!array.writeable() || (array.flags() & py::array::c_style) == 0 || array.nbytes() != bytes) {
    throw py::value_error("field '" + column.name + "': the array must be writable, " +
                          "C-contiguous and of " + std::to_string(bytes) + " bytes, got " +
                          (array.writeable() ? "" : "a read-only one of ") +
                          std::to_string(array.nbytes()) + " bytes");
  }
  return static_cast<std::byte*>(const_cast<void*>(array.data()));
}

// Reads where the samples of each ragged column lie.
std::vector<SpanTable> spans_of(const Table& table, Gatherer& gatherer, IndexSpan samples) {
  const auto columns = table.columns();
  std::vector<SpanTable> spans(columns.size());
  std::optional<Unlocked> unlocked;
  if (std::cmp_greater_equal(samples.indices().size_bytes(), kUnlockBytes)) unlocked.emplace();
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (columns[c].bounds == nullptr) continue;
    gatherer.read_spans(columns[c], samples, spans[c], Reading::kMapped);
  }
  return spans;
}

void gather(const PyTable& self, const IndexArray& indices, const std::vector<py::array>& out) {
  const Table& table = *self.table;
  const auto columns = table.columns();
  table.check_process();
  if (out.size() != columns.size())
    throw py::value_error("there must be one array for each of " + std::to_string(columns.size()) +
                          " columns, got " + std::to_string(out.size()));
  auto samples = checked_copy(table, indices);
  BlockCheck check(table);
  check_rows(check, samples);
  Gatherer gatherer(table);
  std::vector<std::int64_t> rows_memory;
  const IndexSpan mapped = table.mapped(samples, rows_memory);
  const std::vector<SpanTable> spans = spans_of(table, gatherer, mapped);
  std::vector<std::byte*> data;
  std::int64_t total_bytes = 0;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const std::int64_t rows =
        columns[c].bounds == nullptr ? indices.size() : spans[c].spans().total();
    const std::int64_t bytes = checked_mul(columns[c].delivered_bytes(), rows);
    data.push_back(destination(columns[c], out[c], bytes));
    total_bytes += bytes;
  }
  std::optional<Unlocked> unlocked;
  if (total_bytes >= kUnlockBytes || !check.idle()) unlocked.emplace();
  check.check_values(samples, spans, nullptr);
  for (std::size_t c = 0; c < data.size(); ++c) {
    if (columns[c].bounds == nullptr) {
      gatherer.gather(columns[c], mapped, data[c], Reading::kMapped);
    } else {
      gatherer.gather_ragged(columns[c], mapped, spans[c].spans(), nullptr, data[c],
                             Reading::kMapped);
    }
  }
}

std::vector<std::string> bad_blocks(const PyTable& self) {
  self.table->check_process();
  Checksums* checksums = self.table->checksums();
  return checksums == nullptr ? std::vector<std::string>{} : checksums->complaints();
}

py::array_t<std::int64_t> lengths(const PyTable& self, std::int64_t number,
                                  const IndexArray& indices) {
  const Table& table = *self.table;
  const auto columns = table.columns();
  if (number < 0 || static_cast<std::size_t>(number) >= columns.size()) {
    throw py::index_error("column " + std::to_string(number) + " is out of range for " +
                          std::to_string(columns.size()) + " columns");
  }
  const Column& column = columns[static_cast<std::size_t>(number)];
  if (column.bounds == nullptr) throw py::value_error("field '" + column.name + "' is not ragged");
  auto samples = checked_copy(table, indices);
  BlockCheck check(table);
  check_rows(check, samples);
  py::array_t<std::int64_t> out(indices.size());
  std::int64_t* const data = out.mutable_data();
  std::optional<Unlocked> unlocked;
  if (indices.nbytes() >= kUnlockBytes) unlocked.emplace();
  SpanTable spans;
  std::vector<std::int64_t> rows;
  Gatherer(table).read_spans(column, table.mapped(samples, rows), spans, Reading::kMapped);
  for (std::size_t i = 0; i < samples.size(); ++i) data[i] = spans.spans().length(i);
  return out;
}

// Returns the whole mapping of a source's file, read-only; None if the file is read by pread or is
// empty. The array keeps the mapping alive, but its pages are not guarded.
py::object mapping(const PyTable& self, std::int32_t number) {
  const Table& table = *self.table;
  table.check_process();
  if (number < 0 || static_cast<std::size_t>(number) >= table.source_count()) {
    throw bad_source(number, table.source_count());
  }
  const Source& source = table.source(number);
  if (source.file < 0 || table.files().size_bytes(source.file) == 0) return py::none();
  std::shared_ptr<const Mapping> mapped;
  {
    const Unlocked unlocked;  // opening a file may take long
    mapped = table.files().mapping(source.file);
  }
  if (mapped == nullptr) return py::none();
  auto held = std::make_unique<std::shared_ptr<const Mapping>>(std::move(mapped));
  const std::span<const std::byte> bytes = (*held)->bytes();
  const py::capsule owner(held.release(), [](void* p) {
    DeleteUnlocked()(static_cast<std::shared_ptr<const Mapping>*>(p));
  });
  py::array array(py::dtype::of<std::uint8_t>(), {static_cast<py::ssize_t>(bytes.size())}, {},
                  bytes.data(), owner);
  array.attr("setflags")(py::arg("write") = false);
  return array;
}

}  // namespace

void register_table(py::module_& module) {
  using namespace py::literals;
  py::class_<PyTable>(module, "Table", "Locates samples: columns over files and memory.")
      .def_property_readonly("rows", [](const PyTable& self) { return self.table->rows(); })
      .def_property_readonly("column_count",
                             [](const PyTable& self) { return self.table->columns().size(); })
      .def_property_readonly("bad_blocks", &bad_blocks)
      .def("gather", &gather, "indices"_a.noconvert(), "out"_a)
      .def("mapping", &mapping,
           "The bytes of a source's file, read-only; None if it is read by pread.", "source"_a)
      .def("lengths", &lengths, "Elements of each sample of a ragged column.", "column"_a,
           "indices"_a.noconvert());

  py::class_<TableBuilder>(module, "TableBuilder", "Collects the extents of a table.")
      .def(py::init<const std::string&>(), "io"_a = "auto")
      .def("add_file", &TableBuilder::add_file, "path"_a, "size_bytes"_a, "identity"_a = py::none())
      .def("add_memory", &TableBuilder::add_memory, "owner"_a, "address"_a, "size_bytes"_a)
      .def("add_group", &TableBuilder::add_group, "shard_rows"_a.noconvert(),
           "index_map"_a.noconvert() = py::none())
      .def("add_column", &TableBuilder::add_column, "group"_a, "name"_a, "row_bytes"_a,
           "row_stride"_a, "sources"_a.noconvert(), "offsets"_a.noconvert(), "boolean"_a = false,
           "stored"_a = "")
      .def("add_strided_column", &TableBuilder::add_strided_column, "group"_a, "name"_a,
           "shape"_a.noconvert(), "item_bytes"_a, "strides"_a.noconvert(), "sources"_a.noconvert(),
           "offsets"_a.noconvert(), "boolean"_a = false)
      .def("add_checksums", &TableBuilder::add_checksums, "source"_a, "begin"_a, "end"_a,
           "block_bytes"_a, "crcs"_a)
      .def("add_ragged_column", &TableBuilder::add_ragged_column, "group"_a, "name"_a,
           "element_bytes"_a, "sources"_a.noconvert(), "offsets"_a.noconvert(),
           "bounds_sources"_a.noconvert(), "bounds_offsets"_a.noconvert(), "totals"_a.noconvert(),
           "boolean"_a = false, "stored"_a = "")
      .def("build", &TableBuilder::build, "index_map"_a = py::none());

  module.def(
      "measure_gather",
      [](const PyTable& table, const IndexArray& indices, std::int64_t batch, int threads,
         double seconds) {
        const Unlocked unlocked;
        return measure_gather(*table.table, as_span(indices), batch, threads, seconds);
      },
      "Measures the bytes per second that threads copy if they do nothing else.", "table"_a,
      "indices"_a.noconvert(), "batch"_a, "threads"_a, "seconds"_a);
}

}  // namespace fastload::bindings
