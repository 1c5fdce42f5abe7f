#include "engine/engine.h"

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <vector>

#include "base/bytes.h"
#include "bindings/bindings.h"
#include "bindings/exit.h"

namespace fastload::bindings {
namespace {

using Clock = std::chrono::steady_clock;

// A consumer looks for signals (Ctrl-C) this often.
constexpr auto kSlice = std::chrono::milliseconds(50);

struct FieldSpec {
  py::dtype dtype;
  std::vector<py::ssize_t> shape;  // of a batch; [0] is filled in per batch
};

class PyEngine {
 public:
  PyEngine(py::object table, py::object pool,
           const std::vector<std::pair<py::dtype, std::vector<py::ssize_t>>>& fields,
           py::object order, int num_workers, std::int64_t depth)
      : table_(std::move(table)), order_(std::move(order)) {
    const auto& source = table_.cast<const PyTable&>().table;
    if (fields.size() != source->columns().size()) {
      throw py::value_error("one field per column is needed");
    }
    for (std::size_t c = 0; c < fields.size(); ++c) {
      const auto& [dtype, shape] = fields[c];
      if (dtype.attr("hasobject").cast<bool>()) throw py::value_error("fields hold no objects");
      std::int64_t bytes = dtype.itemsize();
      FieldSpec spec{dtype, {0}};
      for (py::ssize_t extent : shape) {
        if (extent < 0) throw py::value_error("a field's shape cannot be negative");
        bytes = checked_mul(bytes, extent);
        spec.shape.push_back(extent);
      }
      if (bytes != source->columns()[c].row_bytes) {
        throw py::value_error("field '" + source->columns()[c].name + "' is not of that size");
      }
      fields_.push_back(std::move(spec));
    }
    engine_ = new Engine(source, pool.cast<PySlotPool&>().get(), index_source_of(order_),
                         EngineOptions{num_workers, depth});
    stop_at_exit(engine_);
  }

  ~PyEngine() {
    // In a forked child the engine is leaked: its threads and condition variables are the parent's.
    if (generation_ != fork_generation()) return;
    forget_at_exit(engine_);
    const Unlocked unlocked;  // a worker may sit in a slow read
    delete engine_;
  }
  PyEngine(const PyEngine&) = delete;
  PyEngine& operator=(const PyEngine&) = delete;

  py::object next(double timeout_s) {
    std::unique_ptr<BatchTask> task;
    Engine::Result result = engine_->try_next(task);
    if (result == Engine::Result::pending) result = wait(timeout_s, task);
    if (result == Engine::Result::end) return py::none();
    py::list arrays = deliver(*task);
    engine_->recycle(std::move(task));
    return arrays;
  }

  void stop() {
    if (generation_ != fork_generation()) return;
    const Unlocked unlocked;
    engine_->stop();
  }

  py::typing::Dict<py::str, py::int_> stats() const {
    const EngineStats stats = engine_->stats();
    py::typing::Dict<py::str, py::int_> out;
    out["batches"] = stats.batches;
    out["samples"] = stats.samples;
    out["bytes"] = stats.bytes;
    out["consumer_wait_ns"] = stats.consumer_wait_ns;
    out["worker_wait_ns"] = stats.worker_wait_ns;
    out["ready"] = stats.ready;
    return out;
  }

 private:
  Engine::Result wait(double timeout_s, std::unique_ptr<BatchTask>& task) {
    const Clock::time_point start = Clock::now();
    for (;;) {
      const Clock::time_point slice_end = Clock::now() + kSlice;
      Engine::Result result;
      {
        const Unlocked unlocked;
        result = engine_->next(slice_end, task);
      }
      if (result != Engine::Result::pending) return result;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      const double waited = std::chrono::duration<double>(Clock::now() - start).count();
      if (timeout_s > 0 && waited >= timeout_s) {
        py::set_error(PyExc_TimeoutError, engine_->describe_due().c_str());
        throw py::error_already_set();
      }
    }
  }

  py::list deliver(BatchTask& task) {
    py::list arrays(fields_.size());
    for (std::size_t c = 0; c < fields_.size(); ++c) {
      std::vector<py::ssize_t> shape = fields_[c].shape;
      shape[0] = static_cast<py::ssize_t>(task.indices.size());
      auto lease = std::make_unique<Lease>(std::move(task.slots[c]));
      std::byte* data = lease->data();
      const py::capsule owner(lease.release(), [](void* p) { delete static_cast<Lease*>(p); });
      arrays[c] = py::array(fields_[c].dtype, std::move(shape), {}, data, owner);
    }
    return arrays;
  }

  const std::uint64_t generation_ = fork_generation();
  py::object table_;  // owns the memory that is read
  py::object order_;
  std::vector<FieldSpec> fields_;
  Engine* engine_ = nullptr;
};

}  // namespace

void register_engine(py::module_& module) {
  using namespace py::literals;
  py::class_<PyEngine>(module, "Engine", "One iterator's run over its batches.")
      .def(py::init<py::object, py::object,
                    const std::vector<std::pair<py::dtype, std::vector<py::ssize_t>>>&, py::object,
                    int, std::int64_t>(),
           "table"_a, "pool"_a, "fields"_a, "order"_a, "num_workers"_a, "depth"_a)
      .def("next", &PyEngine::next, "timeout_s"_a = 0.0)
      .def("stop", &PyEngine::stop)
      .def("stats", &PyEngine::stats);
}

}  // namespace fastload::bindings
