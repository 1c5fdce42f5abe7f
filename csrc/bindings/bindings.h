// Declarations that the files of this folder share.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/index_map.h"
#include "batch/pixels.h"
#include "batch/slot_pool.h"
#include "device/cuda_device.h"
#include "device/pinned_memory.h"
#include "order/index_source.h"
#include "storage/table.h"

namespace fastload::bindings {

namespace py = pybind11;

// An int64, C-contiguous, one-dimensional array; other integers are refused, not converted.
using IndexArray = py::array_t<std::int64_t, py::array::c_style>;

inline std::span<const std::int64_t> as_span(const IndexArray& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

// A table and the Python objects whose memory it reads.
struct PyTable {
  std::shared_ptr<const Table> table;
  py::list owners;
};

// A slot pool; a forked child gets one of its own. Freed without the GIL (DeleteUnlocked, exit.h),
// since the driver may need long to unpin memory, and a tensor may hold the last reference.
struct PySlotPool {
  std::shared_ptr<CudaDevice> device;    // none: ordinary memory
  std::shared_ptr<PinnedMemory> pinned;  // of the pool, if there is a device
  std::shared_ptr<SlotPool> pool;
};
// Returns the pool of this process. Thread-safe. REQUIRES: the GIL, or an attached thread.
std::shared_ptr<SlotPool> pool_of(const py::object& owner);

// The index source behind one of the order classes. Throws TypeError for anything else. `order`
// must outlive it.
std::shared_ptr<IndexSource> index_source_of(py::handle order);

// The index map behind a Mixture. Throws cast_error for anything else.
std::shared_ptr<const IndexMap> index_map_of(py::handle map);

// An array over the memory of a lease, which is returned when the array and all its views are
// freed. REQUIRES: the GIL.
py::array array_over(Lease&& lease, const py::dtype& dtype, std::vector<py::ssize_t> shape);

void register_errors(py::module_& module);
void register_order(py::module_& module);
void register_table(py::module_& module);
void register_batch(py::module_& module);
void register_pixels(py::module_& module);
void register_device(py::module_& module);
void register_batch_builder(py::module_& module);
void register_engine(py::module_& module);
void register_exit(py::module_& module);

}  // namespace fastload::bindings
