#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "batch/gather.h"
#include "bindings/bindings.h"
#include "bindings/exit.h"
#include "engine/measure.h"

namespace fastload::bindings {
namespace {

// Beside a busy Python thread, getting the GIL back costs up to 5 ms: more than a small sample.
constexpr std::int64_t kUnlockBytes = 64 << 10;

Io io_named(const std::string& name) {
  if (name == "auto") return Io::kAuto;
  if (name == "mmap") return Io::kMmap;
  if (name == "pread") return Io::kPread;
  throw py::value_error("io must be 'auto', 'mmap' or 'pread', got '" + name + "'");
}

class TableBuilder {
 public:
  explicit TableBuilder(const std::string& io)
      : files_(std::make_unique<FileCache>(io_named(io))) {}

  std::int32_t add_file(const std::variant<py::str, py::bytes>& path, std::int64_t size_bytes) {
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
    if (size_bytes < 0) throw py::value_error("a file cannot have a negative size");
    sources_.push_back({files_->add(std::move(name), size_bytes), {}});
    return static_cast<std::int32_t>(sources_.size() - 1);
  }

  std::int32_t add_memory(py::object owner, std::uintptr_t address, std::size_t size_bytes) {
    check_unbuilt();
    owners_.append(std::move(owner));
    sources_.push_back({-1, {reinterpret_cast<const std::byte*>(address), size_bytes}});
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
                  bool boolean) {
    check_unbuilt();
    if (group < 0 || static_cast<std::size_t>(group) >= groups_.size()) {
      throw py::index_error("no such group");
    }
    Column column{std::move(name), row_bytes, row_stride, {}, {}, boolean, group};
    for (std::int64_t source : as_span(sources)) {
      if (source < 0 || static_cast<std::size_t>(source) >= sources_.size()) {
        throw py::index_error("no such source");
      }
      column.sources.push_back(static_cast<std::int32_t>(source));
    }
    const auto span = as_span(offsets);
    column.offsets.assign(span.begin(), span.end());
    columns_.push_back(std::move(column));
  }

  PyTable build() {
    check_unbuilt();
    return {std::make_shared<const Table>(std::move(files_), std::move(sources_),
                                          std::move(groups_), std::move(columns_)),
            std::move(owners_)};
  }

 private:
  void check_unbuilt() const {
    if (files_ == nullptr) throw py::value_error("this table is already built");
  }

  std::unique_ptr<FileCache> files_;
  std::vector<Source> sources_;
  std::vector<ColumnGroup> groups_;
  std::vector<Column> columns_;
  py::list owners_;
};

void gather(const PyTable& self, const IndexArray& indices, const std::vector<py::array>& out) {
  const Table& table = *self.table;
  table.check_process();
  if (out.size() != table.columns().size()) throw py::value_error("one array per column is needed");
  std::vector<std::byte*> data;
  std::int64_t total_bytes = 0;
  for (std::size_t c = 0; c < out.size(); ++c) {
    const std::int64_t bytes = checked_mul(table.columns()[c].row_bytes, indices.size());
    const py::array& array = out[c];
    if (!array.writeable() || (array.flags() & py::array::c_style) == 0 ||
        array.nbytes() != bytes) {
      throw py::value_error("field '" + table.columns()[c].name +
                            "': the array must be writable, " + "C-contiguous and of " +
                            std::to_string(bytes) + " bytes");
    }
    data.push_back(static_cast<std::byte*>(const_cast<void*>(array.data())));
    total_bytes += bytes;
  }
  const auto span = as_span(indices);
  const std::vector<std::int64_t> samples(span.begin(), span.end());  // no other thread's to change
  table.check_indices(samples);
  std::optional<Unlocked> unlocked;
  if (total_bytes >= kUnlockBytes) unlocked.emplace();
  Gatherer gatherer(table);
  for (std::size_t c = 0; c < data.size(); ++c) {
    gatherer.gather(table.columns()[c], samples, data[c], Reading::mapped);
  }
}

}  // namespace

void register_table(py::module_& module) {
  using namespace py::literals;
  py::class_<PyTable>(module, "Table", "Where samples lie: columns over files and memory.")
      .def_property_readonly("rows", [](const PyTable& self) { return self.table->rows(); })
      .def_property_readonly("column_count",
                             [](const PyTable& self) { return self.table->columns().size(); })
      .def("gather", &gather, "indices"_a.noconvert(), "out"_a);

  py::class_<TableBuilder>(module, "TableBuilder", "Collects the extents of a table.")
      .def(py::init<const std::string&>(), "io"_a = "auto")
      .def("add_file", &TableBuilder::add_file, "path"_a, "size_bytes"_a)
      .def("add_memory", &TableBuilder::add_memory, "owner"_a, "address"_a, "size_bytes"_a)
      .def("add_group", &TableBuilder::add_group, "shard_rows"_a.noconvert(),
           "index_map"_a.noconvert() = py::none())
      .def("add_column", &TableBuilder::add_column, "group"_a, "name"_a, "row_bytes"_a,
           "row_stride"_a, "sources"_a.noconvert(), "offsets"_a.noconvert(), "boolean"_a = false)
      .def("build", &TableBuilder::build);

  module.def(
      "measure_gather",
      [](const PyTable& table, const IndexArray& indices, std::int64_t batch, int threads,
         double seconds) {
        const Unlocked unlocked;
        return measure_gather(*table.table, as_span(indices), batch, threads, seconds);
      },
      "Bytes per second that threads copy when they do nothing else.", "table"_a,
      "indices"_a.noconvert(), "batch"_a, "threads"_a, "seconds"_a);
}

}  // namespace fastload::bindings
