#include "bindings/batch_builder.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "bindings/bindings.h"

namespace fastload::bindings {
namespace {

// A slot and its description, which live until the tensor over the slot is freed.
struct TensorBlock {
  dlpack::ManagedTensor managed;  // first, since the deleter is passed its address
  Lease slot;
  std::vector<std::int64_t> sizes;  // shape, then strides
};

void delete_block(dlpack::ManagedTensor* managed) {
  delete static_cast<TensorBlock*>(managed->context);
}

// Runs for a capsule that no tensor was made from: one that was has another name.
void delete_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, dlpack::kCapsule) == 0) return;
  delete_block(
      static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, dlpack::kCapsule)));
}

}  // namespace

std::int64_t TensorSpec::sample_bytes() const {
  std::int64_t bytes = type.bits / 8;
  for (std::int64_t size : shape) bytes = checked_mul(bytes, size);
  return bytes;
}

BatchBuilder::BatchBuilder(py::object make_tensor, std::vector<TensorSpec> specs,
                           const py::object& structure, const py::object& container_maker)
    : make_tensor_(std::move(make_tensor)), specs_(std::move(specs)) {
  for (const TensorSpec& spec : specs_) {
    for (const std::int64_t size : spec.shape) {
      if (size < 0)
        throw py::value_error("the shape of a tensor must not be negative, got " +
                              std::to_string(size));
    }
    static_cast<void>(spec.sample_bytes());  // throws if it overflows
  }
  root_ = node_of(structure, container_maker);
}

BatchBuilder::Node BatchBuilder::node_of(const py::handle& structure,
                                         const py::object& container_maker) const {
  Node node;
  if (PyLong_CheckExact(structure.ptr()) != 0) {
    node.tensor = structure.cast<std::size_t>();
    if (node.tensor >= specs_.size())
      throw py::value_error("the structure names tensor " + std::to_string(node.tensor) + " of " +
                            std::to_string(specs_.size()));
    return node;
  }
  py::object members = py::reinterpret_borrow<py::object>(structure);
  if (PyDict_CheckExact(structure.ptr()) != 0) {
    node.kind = Node::Kind::kDict;
    for (const py::handle key : structure) {
      node.keys.push_back(py::reinterpret_borrow<py::object>(key));
    }
  } else if (PyList_CheckExact(structure.ptr()) != 0 || PyTuple_CheckExact(structure.ptr()) != 0) {
    node.kind = Node::Kind::kList;
  } else {
    node.kind = Node::Kind::kOther;
    node.make = container_maker(structure);
  }
  if (py::isinstance<py::dict>(structure)) members = structure.attr("values")();
  for (const py::handle member : members) node.members.push_back(node_of(member, container_maker));
  return node;
}

py::object BatchBuilder::build(std::vector<Lease>& slots, std::int64_t samples) const {
  return made(root_, slots, samples);
}

py::object BatchBuilder::made(const Node& node, std::vector<Lease>& slots,
                              std::int64_t samples) const {
  if (node.kind == Node::Kind::kTensor) {
    return tensor_over(std::move(slots[node.tensor]), specs_[node.tensor], samples);
  }
  if (node.kind == Node::Kind::kDict) {
    py::dict batch;
    for (std::size_t i = 0; i < node.keys.size(); ++i) {
      const py::object member = made(node.members[i], slots, samples);
      if (PyDict_SetItem(batch.ptr(), node.keys[i].ptr(), member.ptr()) != 0) {
        throw py::error_already_set();
      }
    }
    return batch;
  }
  py::list members(node.members.size());
  for (std::size_t i = 0; i < node.members.size(); ++i) {
    PyList_SET_ITEM(members.ptr(), static_cast<py::ssize_t>(i),
                    made(node.members[i], slots, samples).release().ptr());
  }
  return node.kind == Node::Kind::kList ? py::object(std::move(members)) : node.make(members);
}

py::object BatchBuilder::tensor_over(Lease&& slot, const TensorSpec& spec,
                                     std::int64_t samples) const {
  const std::size_t axes = spec.shape.size() + 1;
  auto block = std::make_unique<TensorBlock>();
  block->slot = std::move(slot);
  block->sizes.resize(2 * axes);
  std::int64_t* const shape = block->sizes.data();
  std::int64_t* const strides = shape + axes;
  shape[0] = samples;
  std::ranges::copy(spec.shape, shape + 1);
  strides[axes - 1] = 1;
  for (std::size_t axis = axes - 1; axis > 0; --axis) {
    strides[axis - 1] = strides[axis] * shape[axis];
  }
  if (spec.channels_first) {
    for (std::int64_t* sizes : {shape, strides}) {
      std::rotate(sizes + 1, sizes + axes - 1, sizes + axes);
    }
  }
  block->managed = {{block->slot.data(),
                     {dlpack::kCpu, 0},
                     static_cast<std::int32_t>(axes),
                     spec.type,
                     shape,
                     strides,
                     0},
                    block.get(),
                    &delete_block};
  const auto capsule = py::reinterpret_steal<py::object>(
      PyCapsule_New(&block->managed, dlpack::kCapsule, &delete_capsule));
  if (!capsule) throw py::error_already_set();
  static_cast<void>(block.release());
  const auto tensor =
      py::reinterpret_steal<py::object>(PyObject_CallOneArg(make_tensor_.ptr(), capsule.ptr()));
  if (!tensor) throw py::error_already_set();
  return tensor;
}

void register_batch_builder(py::module_& module) {
  using namespace py::literals;
  using Spec = std::tuple<std::uint8_t, std::uint8_t, std::vector<std::int64_t>, bool>;
  py::class_<BatchBuilder>(module, "BatchBuilder",
                           "From the memory of a batch to tensors in their containers.")
      .def(py::init([](py::object make_tensor, const std::vector<Spec>& tensors,
                       const py::object& structure, const py::object& container_maker) {
             std::vector<TensorSpec> specs;
             for (const auto& [code, bits, shape, channels_first] : tensors) {
               specs.push_back({{code, bits, 1}, shape, channels_first});
             }
             return BatchBuilder(std::move(make_tensor), std::move(specs), structure,
                                 container_maker);
           }),
           "make_tensor"_a, "tensors"_a, "structure"_a, "container_maker"_a);
}

}  // namespace fastload::bindings
