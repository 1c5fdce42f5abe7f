#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "bindings/bindings.h"
#include "order/epoch_plan.h"
#include "order/mixture.h"
#include "order/occurrences.h"
#include "order/permutation.h"
#include "order/weighted.h"

namespace fastload::bindings {
namespace {

// An order that is an array, which this keeps alive.
struct PyArrayOrder {
  IndexArray indices;
  std::int64_t batch_size;
  bool drop_last;
  std::shared_ptr<Occurrences> repeats;
};

// Counts the indices of an order, so that repeated samples get RNG keys of their own.
using RepeatsArgument = std::optional<std::shared_ptr<Occurrences>>;

struct PyPushedOrder {
  std::shared_ptr<PushedOrder> order;
};

template <class Kind>
Kind named(const char* what, const std::string& name,
           std::initializer_list<std::pair<const char*, Kind>> kinds) {
  std::string known;
  for (const auto& [kind_name, kind] : kinds) {
    if (name == kind_name) return kind;
    known += (known.empty() ? "'" : ", '") + std::string(kind_name) + "'";
  }
  throw py::value_error(std::string(what) + " must be one of " + known + ", got '" + name + "'");
}

EpochPlan make_plan(std::int64_t rows, std::int64_t batch, std::int64_t rank, std::int64_t world,
                    std::uint64_t seed, std::uint64_t epoch, std::int64_t first_position,
                    const std::string& tail, const std::string& order, std::int64_t block_rows,
                    std::int64_t window_blocks,
                    const std::optional<std::shared_ptr<WeightTable>>& weights,
                    std::int64_t index_offset) {
  EpochSpec spec;
  spec.rows = rows;
  spec.batch = batch;
  spec.rank = rank;
  spec.world = world;
  spec.seed = seed;
  spec.epoch = epoch;
  spec.first_position = first_position;
  spec.tail = named<Tail>("tail", tail,
                          {{"drop", Tail::kDrop}, {"pad", Tail::kPad}, {"short", Tail::kShort}});
  spec.order = named<OrderKind>("order", order,
                                {{"sequential", OrderKind::kSequential},
                                 {"full", OrderKind::kFull},
                                 {"block", OrderKind::kBlock},
                                 {"weighted", OrderKind::kWeighted}});
  spec.block_rows = block_rows;
  spec.window_blocks = window_blocks;
  spec.weights = weights.value_or(nullptr);
  spec.index_offset = index_offset;
  return EpochPlan(spec);
}

void check_batch(const EpochPlan& plan, std::int64_t batch) {
  if (batch < 0 || batch >= plan.batch_count())
    throw py::index_error("batch " + std::to_string(batch) + " is out of range for " +
                          std::to_string(plan.batch_count()) + " batches");
}

template <std::int64_t (EpochPlan::*kCount)(std::int64_t) const>
std::int64_t plan_count(const EpochPlan& plan, std::int64_t batch) {
  check_batch(plan, batch);
  return (plan.*kCount)(batch);
}

py::array_t<std::int64_t> plan_indices(const EpochPlan& plan, std::int64_t batch) {
  check_batch(plan, batch);
  std::vector<std::int64_t> indices;
  plan.indices(batch, indices);
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(indices.size()), indices.data());
}

IndexArray plan_draws(const EpochPlan& plan, std::int64_t batch) {
  check_batch(plan, batch);
  std::vector<std::int64_t> draws;
  plan.draws(batch, draws);
  if (draws.empty()) plan.indices(batch, draws);
  return IndexArray(static_cast<py::ssize_t>(draws.size()), draws.data());
}

template <class Float>
std::shared_ptr<WeightTable> weights_of(const py::array_t<Float, py::array::c_style>& weights) {
  if (weights.ndim() != 1)
    throw py::value_error("weights must have one dimension, got " + std::to_string(weights.ndim()));
  const std::span<const Float> span(weights.data(), static_cast<std::size_t>(weights.size()));
  const py::gil_scoped_release unlocked;
  return std::make_shared<WeightTable>(span);
}

// The sums as bytes, and back.
py::bytes packed_weights(const WeightTable& table) {
  const auto bytes = std::as_bytes(table.sums());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::shared_ptr<WeightTable> unpacked_weights(const py::bytes& packed) {
  const std::string_view bytes = packed;
  std::vector<std::uint64_t> sums(bytes.size() / sizeof(std::uint64_t));
  std::memcpy(sums.data(), bytes.data(), sums.size() * sizeof(std::uint64_t));
  return std::make_shared<WeightTable>(WeightTable::of_sums(std::move(sums)));
}

py::array_t<std::int64_t> permuted(const Permutation& permutation, std::int64_t first,
                                   std::int64_t count) {
  if (first < 0 || count < 0 || first > permutation.size() - count) {
    throw py::index_error("positions " + std::to_string(first) + " to " + std::to_string(first) +
                          " + " + std::to_string(count) +
                          " are out of range for a permutation of " +
                          std::to_string(permutation.size()));
  }
  py::array_t<std::int64_t> out(count);
  permutation.indices_from(first, {out.mutable_data(), static_cast<std::size_t>(count)});
  return out;
}

Mixture make_mixture(const IndexArray& sizes, const IndexArray& weights,
                     std::optional<std::uint64_t> seed, const std::string& exhausted,
                     std::optional<std::int64_t> samples) {
  const auto vector = [](const IndexArray& array) {
    const auto span = as_span(array);
    return std::vector<std::int64_t>(span.begin(), span.end());
  };
  const auto policy = named<Exhausted>(
      "exhausted", exhausted,
      {{"stop", Exhausted::kStop}, {"repeat", Exhausted::kRepeat}, {"drop", Exhausted::kDrop}});
  return Mixture({vector(sizes), vector(weights), policy, samples, seed});
}

void check_indices(const Mixture& mixture, const IndexArray& indices) {
  for (std::int64_t index : as_span(indices)) {
    if (index < 0 || index >= mixture.index_limit()) {
      throw py::index_error("index " + std::to_string(index) + " is outside [0, 2^62)");
    }
  }
}

std::pair<IndexArray, IndexArray> located(const Mixture& mixture, const IndexArray& indices) {
  check_indices(mixture, indices);
  IndexArray sources(indices.size());
  IndexArray samples(indices.size());
  const auto count = static_cast<std::size_t>(indices.size());
  mixture.locate(as_span(indices), {sources.mutable_data(), count},
                 {samples.mutable_data(), count});
  return {std::move(sources), std::move(samples)};
}

IndexArray rows_of(const Mixture& mixture, const IndexArray& indices) {
  check_indices(mixture, indices);
  IndexArray rows(indices.size());
  mixture.rows(as_span(indices), {rows.mutable_data(), static_cast<std::size_t>(rows.size())});
  return rows;
}

IndexArray counted(const Mixture& mixture, std::int64_t epoch) {
  if (epoch < 0 || epoch >= mixture.index_limit() / mixture.size()) {
    throw py::index_error("epoch " + std::to_string(epoch) + " is out of range");
  }
  const std::vector<std::int64_t> counts = mixture.counts(epoch);
  return IndexArray(static_cast<py::ssize_t>(counts.size()), counts.data());
}

void register_plans(py::module_& module) {
  using namespace py::literals;
  py::class_<Permutation>(module, "Permutation", "A keyed bijection of [0, n) in O(1) memory.")
      .def(py::init([](std::int64_t n, std::uint64_t seed, std::uint64_t epoch) {
             return Permutation(n, hash_key(seed, epoch, 0));
           }),
           "n"_a, "seed"_a, "epoch"_a)
      .def("__len__", &Permutation::size)
      .def(
          "at",
          [](const Permutation& self, std::int64_t position) {
            if (position < 0 || position >= self.size())
              throw py::index_error("position " + std::to_string(position) +
                                    " is out of range for a permutation of " +
                                    std::to_string(self.size()));
            return self.index_at(position);
          },
          "position"_a)
      .def("indices", &permuted, "first"_a, "count"_a);

  py::class_<WeightTable, std::shared_ptr<WeightTable>>(
      module, "WeightTable", "Cumulated weights, from which indices are sampled.")
      .def(py::init(&weights_of<double>), "weights"_a.noconvert())
      .def(py::init(&weights_of<float>), "weights"_a.noconvert())
      .def("__len__", &WeightTable::size)
      .def_property_readonly("fingerprint", &WeightTable::fingerprint)
      .def(py::pickle(&packed_weights, &unpacked_weights));

  py::class_<EpochPlan>(module, "EpochPlan", "Which samples each batch of an epoch holds.")
      .def(py::init(&make_plan), py::kw_only(), "rows"_a, "batch"_a, "rank"_a = 0, "world"_a = 1,
           "seed"_a = 0, "epoch"_a = 0, "first_position"_a = 0, "tail"_a = "short",
           "order"_a = "full", "block_rows"_a = 0, "window_blocks"_a = 0, "weights"_a = py::none(),
           "index_offset"_a = 0)
      .def_property_readonly("batch_count", &EpochPlan::batch_count)
      .def("batch_size", &plan_count<&EpochPlan::batch_size>, "batch"_a)
      .def("real_count", &plan_count<&EpochPlan::real_count>, "batch"_a)
      .def("indices", &plan_indices, "batch"_a)
      .def("draws", &plan_draws, "What random transforms of these samples are keyed by.",
           "batch"_a);

  py::class_<Mixture, std::shared_ptr<Mixture>>(module, "Mixture", "Indices of many datasets.")
      .def(py::init(&make_mixture), "sizes"_a.noconvert(), "weights"_a.noconvert(), "seed"_a,
           "exhausted"_a, "samples"_a)
      .def("__len__", &Mixture::size)
      .def("locate", &located, "Sources, and their samples.", "indices"_a.noconvert())
      .def("rows", &rows_of, "Samples counted through all sources.", "indices"_a.noconvert())
      .def("counts", &counted, "Samples of each source in an epoch.", "epoch"_a);

  py::class_<Occurrences, std::shared_ptr<Occurrences>>(
      module, "Occurrences", "Which time it is in an epoch that an index comes.")
      .def(py::init<std::int64_t>(), "rows"_a)
      .def(
          "count",
          [](Occurrences& self, const IndexArray& indices) { self.count(as_span(indices)); },
          "Counts indices that come before those of an order.", "indices"_a.noconvert());
}

}  // namespace

std::shared_ptr<const IndexMap> index_map_of(py::handle map) {
  return map.cast<std::shared_ptr<Mixture>>();
}

std::shared_ptr<IndexSource> index_source_of(py::handle order) {
  if (py::isinstance<EpochPlan>(order)) {
    return std::make_shared<PlanOrder>(order.cast<const EpochPlan&>());
  }
  if (py::isinstance<PyArrayOrder>(order)) {
    const auto& array = order.cast<const PyArrayOrder&>();
    return std::make_shared<ArrayOrder>(as_span(array.indices), array.batch_size, array.drop_last,
                                        array.repeats);
  }
  if (py::isinstance<PyPushedOrder>(order)) return order.cast<const PyPushedOrder&>().order;
  throw py::type_error("order must be an EpochPlan, an ArrayOrder or a PushedOrder, got " +
                       py::type::of(order).attr("__name__").cast<std::string>());
}

void register_order(py::module_& module) {
  using namespace py::literals;
  register_plans(module);

  py::class_<PyArrayOrder>(module, "ArrayOrder", "A whole order, cut into batches.")
      .def(py::init([](IndexArray indices, std::int64_t batch_size, bool drop_last,
                       const RepeatsArgument& repeats) {
             if (indices.ndim() != 1)
               throw py::value_error("indices must have one dimension, got " +
                                     std::to_string(indices.ndim()));
             if (batch_size < 1)
               throw py::value_error("batch_size must be positive, got " +
                                     std::to_string(batch_size));
             return PyArrayOrder{std::move(indices), batch_size, drop_last,
                                 repeats.value_or(nullptr)};
           }),
           "indices"_a.noconvert(), "batch_size"_a, "drop_last"_a, "repeats"_a = py::none());

  py::class_<PyPushedOrder>(module, "PushedOrder", "Batches of indices, pushed one by one.")
      .def(py::init([](const RepeatsArgument& repeats) {
             return PyPushedOrder{std::make_shared<PushedOrder>(repeats.value_or(nullptr))};
           }),
           "repeats"_a = py::none())
      .def(
          "push",
          [](PyPushedOrder& self, const IndexArray& indices,
             const std::optional<IndexArray>& draws) {
            const auto vector = [](const IndexArray& array) {
              const auto span = as_span(array);
              return std::vector<std::int64_t>(span.begin(), span.end());
            };
            self.order->push(vector(indices), draws ? vector(*draws) : std::vector<std::int64_t>());
          },
          "indices"_a.noconvert(), "draws"_a = py::none())
      .def("finish", [](PyPushedOrder& self) { self.order->finish(); });
}

}  // namespace fastload::bindings
