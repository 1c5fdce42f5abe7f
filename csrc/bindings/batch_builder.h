// From the slots of a batch to the batch that a loader yields: torch tensors in the containers of
// `default_collate`.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "batch/slot_pool.h"
#include "bindings/dlpack.h"

namespace fastload::bindings {

// How one slot becomes a tensor.
struct TensorSpec {
  dlpack::DataType type;
  std::vector<std::int64_t> shape;  // of a sample, as it lies in memory
  bool channels_first = false;  // the last axis in memory is axis 1 of the tensor, which is a view

  std::int64_t sample_bytes() const;
};

// Constant after construction, so that threads may share it. REQUIRES: the GIL, or an attached
// thread where there is none.
class BatchBuilder {
 public:
  // `make_tensor` makes a tensor from a DLPack capsule, without a copy; torch's is passed in, since
  // the core does not link torch. `structure` holds the containers of a sample around the numbers
  // of its tensors. Tuples become lists; for containers other than dict, list and tuple
  // `container_maker(container)` returns a function that makes one from a list of members. Throws
  // ValueError for sizes below 0 and for numbers that are not of a tensor.
  BatchBuilder(pybind11::object make_tensor, std::vector<TensorSpec> specs,
               const pybind11::object& structure, const pybind11::object& container_maker);

  const std::vector<TensorSpec>& specs() const { return specs_; }
  // Takes the leases, one per tensor, of a batch of `samples` samples. Each tensor owns its slot.
  pybind11::object build(std::vector<Lease>& slots, std::int64_t samples) const;

 private:
  // A tensor or a container of a batch.
  struct Node {
    enum class Kind { kTensor, kList, kDict, kOther } kind = Kind::kTensor;
    std::size_t tensor = 0;
    std::vector<Node> members = {};
    std::vector<pybind11::object> keys = {};  // of a dict
    pybind11::object make = {};               // of another container, from a list of its members
  };

  Node node_of(const pybind11::handle& structure, const pybind11::object& container_maker) const;
  pybind11::object made(const Node& node, std::vector<Lease>& slots, std::int64_t samples) const;
  pybind11::object tensor_over(Lease&& slot, const TensorSpec& spec, std::int64_t samples) const;

  pybind11::object make_tensor_;
  std::vector<TensorSpec> specs_;
  Node root_;
};

}  // namespace fastload::bindings
