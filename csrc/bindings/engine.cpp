#include "engine/engine.h"

#include <pybind11/critical_section.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "bindings/batch_builder.h"
#include "bindings/bindings.h"
#include "bindings/exit.h"

namespace fastload::bindings {
namespace {

using Clock = std::chrono::steady_clock;

// How long a stop waits for workers that read: Ctrl-C must take effect within a second.
constexpr auto kStopPatience = std::chrono::milliseconds(400);

using Shape = std::vector<py::ssize_t>;
using PaddingArgument = std::optional<std::pair<std::int64_t, py::bytes>>;  // multiple, element
using ImageArgument =  // plan, height and width as they are stored
    std::tuple<std::shared_ptr<PixelPlan>, std::int64_t, std::int64_t>;
using FieldArgument =
    std::variant<std::tuple<py::dtype, Shape>, std::tuple<py::dtype, Shape, PaddingArgument>,
                 std::tuple<py::dtype, Shape, ImageArgument>>;

// How one column becomes arrays.
struct FieldSpec {
  py::dtype dtype;
  Shape shape;  // of a sample; of an element if ragged
  std::optional<PadTo> padding;
  std::optional<ImageDelivery> images;
};

FieldSpec field_spec(const FieldArgument& argument, const Column& column, std::uint64_t seed,
                     std::uint64_t epoch) {
  auto [dtype, shape] = std::visit(
      [](const auto& field) { return std::pair(std::get<0>(field), std::get<1>(field)); },
      argument);
  if (dtype.attr("hasobject").cast<bool>())
    throw py::value_error("the dtype of a field must not hold Python objects, got " +
                          py::str(dtype).cast<std::string>());
  std::int64_t bytes = dtype.itemsize();
  for (py::ssize_t extent : shape) {
    if (extent < 0)
      throw py::value_error("the shape of a field must not be negative, got " +
                            std::to_string(extent));
    bytes = checked_mul(bytes, extent);
  }
  FieldSpec spec{std::move(dtype), std::move(shape), std::nullopt, std::nullopt};
  if (const auto* image = std::get_if<std::tuple<py::dtype, Shape, ImageArgument>>(&argument)) {
    const auto& [plan, height, width] = std::get<2>(*image);
    spec.images = ImageDelivery{plan, plan->shape(height, width), plan->keys(seed, epoch)};
  }
  const std::int64_t delivered =
      spec.images ? spec.images->delivered_bytes() : column.delivered_bytes();
  if (bytes != delivered) {
    throw py::value_error("field '" + column.name + "': dtype and shape must have " +
                          std::to_string(delivered) + " bytes, got " + std::to_string(bytes));
  }
  const auto* padded = std::get_if<std::tuple<py::dtype, Shape, PaddingArgument>>(&argument);
  if (padded == nullptr || !std::get<2>(*padded)) return spec;
  const auto& [multiple, element] = *std::get<2>(*padded);
  const std::string_view text(element);
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  spec.padding = PadTo{multiple, {data, data + text.size()}};
  return spec;
}

// The figures of a loader, which start at zero in a forked child: its engines are the parent's.
struct PyLoadStats {
  std::shared_ptr<LoadStats> stats = std::make_shared<LoadStats>();
  std::uint64_t generation = fork_generation();
};

std::shared_ptr<LoadStats> stats_of(const py::object& owner) {
  auto& [stats, generation] = owner.cast<PyLoadStats&>();
  const py::scoped_critical_section lock(owner);
  if (generation != fork_generation()) {
    stats = std::make_shared<LoadStats>();
    generation = fork_generation();
  }
  return stats;
}

using FigureDict = py::typing::Dict<py::str, py::int_>;

FigureDict as_dict(const LoadFigures& figures) {
  FigureDict out;
  out["batches"] = figures.batches;
  out["samples"] = figures.samples;
  out["bytes"] = figures.bytes;
  out["missing"] = figures.missing;
  out["consumer_wait_ns"] = figures.consumer_wait_ns;
  out["wait_p50_ns"] = figures.wait_p50_ns;
  out["wait_p99_ns"] = figures.wait_p99_ns;
  out["worker_wait_ns"] = figures.worker_wait_ns;
  out["cold_batches"] = figures.cold_batches;
  out["ready"] = figures.ready;
  return out;
}

class PyEngine {
 public:
  PyEngine(py::object table, py::object pool, const std::vector<FieldArgument>& fields,
           py::object order, int num_workers, std::int64_t depth, const std::string& on_error,
           std::uint64_t seed, std::uint64_t epoch, bool with_number, bool with_samples,
           const std::optional<py::object>& stats, bool counts_waits, py::object builder)
      : table_(std::move(table)),
        order_(std::move(order)),
        skips_(on_error == "skip"),
        with_number_(with_number),
        with_samples_(with_samples),
        builder_object_(std::move(builder)),
        builder_(builder_object_.is_none() ? nullptr : &builder_object_.cast<BatchBuilder&>()) {
    check_not_exiting();
    if (!skips_ && on_error != "raise") {
      throw py::value_error("on_error must be 'raise' or 'skip', got '" + on_error + "'");
    }
    const auto& source = table_.cast<const PyTable&>().table;
    const auto columns = source->columns();
    if (fields.size() != columns.size()) {
      throw py::value_error("there must be one field for each of " +
                            std::to_string(columns.size()) + " columns, got " +
                            std::to_string(fields.size()));
    }
    EngineOptions options{num_workers, depth, skips_ ? OnError::kSkip : OnError::kRaise};
    if (stats) options.stats = stats_of(*stats);
    options.counts_waits = counts_waits;
    options.wants_draws = with_samples;
    for (std::size_t c = 0; c < fields.size(); ++c) {
      fields_.push_back(field_spec(fields[c], columns[c], seed, epoch));
      options.paddings.push_back(fields_.back().padding);
      options.images.push_back(fields_.back().images);
    }
    check_builder();
    free_ended();
    engine_ = std::make_unique<Engine>(source, pool_of(pool), index_source_of(order_), options);
    stop_at_exit(engine_.get());
  }

  ~PyEngine() {
    // In a forked child the engine is leaked: its threads and condition variables are the parent's.
    if (generation_ != fork_generation()) {
      static_cast<void>(engine_.release());
      return;
    }
    forget_at_exit(engine_.get());
    if (stop()) {
      const Unlocked unlocked;
      engine_.reset();
    } else {
      keep_stalled(std::move(engine_), {std::move(table_), std::move(order_)});
    }
  }
  PyEngine(const PyEngine&) = delete;
  PyEngine& operator=(const PyEngine&) = delete;

  // The arrays of the next batch; None at the end.
  py::object next(double timeout_s) {
    std::unique_ptr<BatchTask> task = take(timeout_s);
    if (task == nullptr) return py::none();
    py::list arrays = deliver(*task);
    engine_->recycle(std::move(task));
    return arrays;
  }

  // The next batch as the loader yields it; None at the end.
  py::object next_batch(double timeout_s) {
    if (builder_ == nullptr) throw py::type_error("next_batch() needs an engine with a builder");
    std::unique_ptr<BatchTask> task = take(timeout_s);
    if (task == nullptr) return py::none();
    const auto samples = static_cast<std::int64_t>(task->indices.size());
    py::object batch = builder_->build(task->slots, samples);
    engine_->recycle(std::move(task));
    return batch;
  }

  bool is_ready() const { return engine_->is_ready(); }

  std::string describe_due() const {
    const Unlocked unlocked;
    return engine_->describe_due();
  }

  // Returns whether the workers have ended. Waits for them at the first call.
  bool stop() {
    if (generation_ != fork_generation()) return true;
    const Unlocked unlocked;
    const auto patience = std::exchange(patience_, Clock::duration::zero());
    return engine_->stop_until(Clock::now() + patience);
  }

  FigureDict stats() const { return as_dict(engine_->stats()); }

 private:
  // Each tensor of the builder is one column, whole.
  void check_builder() const {
    if (builder_ == nullptr) return;
    const auto& specs = builder_->specs();
    if (specs.size() != fields_.size())
      throw py::value_error("there must be one tensor for each of " +
                            std::to_string(fields_.size()) + " columns, got " +
                            std::to_string(specs.size()));
    const auto columns = table_.cast<const PyTable&>().table->columns();
    for (std::size_t c = 0; c < specs.size(); ++c) {
      const auto& images = fields_[c].images;
      const std::int64_t bytes = images ? images->delivered_bytes() : columns[c].delivered_bytes();
      if (columns[c].bounds != nullptr || specs[c].sample_bytes() != bytes) {
        throw py::value_error("field '" + columns[c].name + "': a tensor must have " +
                              std::to_string(bytes) +
                              " bytes a sample and not be ragged, got one of " +
                              std::to_string(specs[c].sample_bytes()));
      }
    }
  }

  // The next batch, ready or waited for; nullptr at the end.
  std::unique_ptr<BatchTask> take(double timeout_s) {
    std::unique_ptr<BatchTask> task;
    Engine::Result result = engine_->try_next(task);
    if (result == Engine::Result::kPending) result = wait(timeout_s, task);
    return result == Engine::Result::kEnd ? nullptr : std::move(task);
  }

  Engine::Result wait(double timeout_s, std::unique_ptr<BatchTask>& task) {
    const Clock::time_point start = Clock::now();
    Engine::Result result = Engine::Result::kPending;
    const auto wait_until = [&](Clock::time_point deadline) {
      result = engine_->next(deadline, task);
      return result != Engine::Result::kPending;
    };
    wait_in_slices(wait_until, [&] {
      const double waited = std::chrono::duration<double>(Clock::now() - start).count();
      if (timeout_s <= 0 || waited < timeout_s) return;
      py::set_error(PyExc_TimeoutError, engine_->describe_due().c_str());
      throw py::error_already_set();
    });
    return result;
  }

  py::list deliver(BatchTask& task) {
    py::list arrays(task.slots.size());
    const auto samples = static_cast<py::ssize_t>(task.indices.size());
    const auto deliveries = engine_->deliveries();
    for (std::size_t c = 0; c < fields_.size(); ++c) {
      const FieldSpec& field = fields_[c];
      const Delivery& delivery = deliveries[c];
      Shape shape{samples};
      if (delivery.padded) {
        shape.push_back(task.layout.padded_lengths[c]);
      } else if (delivery.ragged) {
        shape[0] = task.spans[c].spans().total();
      }
      shape.insert(shape.end(), field.shape.begin(), field.shape.end());
      std::size_t slot = delivery.slot;
      arrays[slot] = array_over(std::move(task.slots[slot]), field.dtype, std::move(shape));
      if (!delivery.ragged) continue;
      ++slot;  // lengths, or offsets
      arrays[slot] = array_over(std::move(task.slots[slot]), py::dtype::of<std::int64_t>(),
                                {samples + (delivery.padded ? 0 : 1)});
    }
    if (skips_) {
      const auto count = static_cast<py::ssize_t>(task.missing.size());
      arrays.append(IndexArray(count, task.missing.data()));
    }
    if (with_number_) arrays.append(task.number);
    if (with_samples_) arrays.append(samples_of(task));
    return arrays;
  }

  // Indices, and below them draws.
  static IndexArray samples_of(const BatchTask& task) {
    const IndexSpan samples = task.samples();
    IndexArray array({py::ssize_t{2}, static_cast<py::ssize_t>(samples.size())});
    const auto below = std::ranges::copy(samples.indices(), array.mutable_data()).out;
    std::ranges::copy(samples.draws(), below);
    return array;
  }

  const std::uint64_t generation_ = fork_generation();
  py::object table_;  // owns the memory that is read
  py::object order_;
  bool skips_;                   // damaged samples; an array of each batch has their indices
  bool with_number_;             // the number of a batch follows its arrays
  bool with_samples_;            // the last array has indices and draws: int64 (2, B)
  py::object builder_object_;    // owns the next
  const BatchBuilder* builder_;  // of whole batches; nullptr: next() yields arrays
  std::vector<FieldSpec> fields_;
  Clock::duration patience_ = kStopPatience;
  std::unique_ptr<Engine> engine_;
};

}  // namespace

void register_engine(py::module_& module) {
  using namespace py::literals;
  py::class_<PyLoadStats>(module, "LoadStats", "Figures of a loader in this process.")
      .def(py::init<>())
      .def("read", [](const py::object& self) { return as_dict(stats_of(self)->read()); })
      .def("count_batch",
           [](const py::object& self) { stats_of(self)->count_batch(0, 0, 0, false); })
      .def(
          "count_missing",
          [](const py::object& self, std::int64_t samples) {
            stats_of(self)->count_missing(samples);
          },
          "Counts samples that were removed from a batch after it was counted.", "samples"_a)
      .def(
          "add_wait", [](const py::object& self, std::int64_t ns) { stats_of(self)->add_wait(ns); },
          "wait_ns"_a)
      .def(
          "count_wait",
          [](const py::object& self, std::int64_t ns) { stats_of(self)->count_wait(ns); },
          "wait_ns"_a);
  py::class_<PyEngine>(module, "Engine", "Loads the batches of one iterator.")
      .def(py::init<py::object, py::object, const std::vector<FieldArgument>&, py::object, int,
                    std::int64_t, const std::string&, std::uint64_t, std::uint64_t, bool, bool,
                    const std::optional<py::object>&, bool, py::object>(),
           "table"_a, "pool"_a, "fields"_a, "order"_a, "num_workers"_a, "depth"_a,
           "on_error"_a = "raise", py::kw_only(), "seed"_a = 0, "epoch"_a = 0,
           "with_number"_a = false, "with_samples"_a = false, "stats"_a = py::none(),
           "counts_waits"_a = true, "builder"_a = py::none())
      .def("next", &PyEngine::next, "timeout_s"_a = 0.0)
      .def("next_batch", &PyEngine::next_batch, "timeout_s"_a = 0.0)
      .def("is_ready", &PyEngine::is_ready)
      .def("describe_due", &PyEngine::describe_due)
      .def("stop", [](PyEngine& self) { self.stop(); })
      .def("stats", &PyEngine::stats);
}

}  // namespace fastload::bindings
