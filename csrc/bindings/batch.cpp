#include <fcntl.h>
#include <pybind11/critical_section.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "batch/copy.h"
#include "batch/host_memory.h"
#include "bindings/bindings.h"
#include "bindings/exit.h"

namespace fastload::bindings {
namespace {

std::uint32_t checksum(const py::buffer& data, std::uint32_t crc) {
  const py::buffer_info info = data.request();
  if (PyBuffer_IsContiguous(info.view(), 'C') == 0) {
    throw py::value_error("data of crc32c must be C-contiguous, got a view that is not");
  }
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(info.ptr),
                                         static_cast<std::size_t>(info.size * info.itemsize));
  const Unlocked unlocked;
  return crc32c(bytes, crc);
}

// Errors are ignored: the kernel writes the range later in any case.
void start_writeback(int descriptor, std::int64_t offset, std::int64_t size_bytes) {
#ifdef __linux__
  const Unlocked unlocked;
  (void)sync_file_range(descriptor, offset, size_bytes, SYNC_FILE_RANGE_WRITE);
#else
  (void)descriptor, (void)offset, (void)size_bytes;
#endif
}

}  // namespace

std::shared_ptr<SlotPool> pool_of(const py::object& owner) {
  auto& self = owner.cast<PySlotPool&>();
  const py::scoped_critical_section lock(owner);  // no-op where there is a GIL
  if (self.pool != nullptr && self.pool->usable()) return self.pool;
  if (self.device == nullptr) {
    self.pool = make_shared_unlocked<SlotPool>(std::make_shared<HostMemory>());
  } else {
    self.pinned = make_shared_unlocked<PinnedMemory>(self.device);
    self.pool = make_shared_unlocked<SlotPool>(self.pinned);
  }
  return self.pool;
}

py::array array_over(Lease&& lease, const py::dtype& dtype, std::vector<py::ssize_t> shape) {
  auto owned = std::make_unique<Lease>(std::move(lease));
  std::byte* const data = owned->data();
  const py::capsule owner(owned.release(), [](void* p) { delete static_cast<Lease*>(p); });
  return py::array(dtype, std::move(shape), {}, data, owner);
}

namespace {

void reserve(const py::object& self, std::size_t bytes) {
  const auto pool = pool_of(self);
  const std::shared_ptr<PinnedMemory> pinned = self.cast<PySlotPool&>().pinned;
  if (pinned == nullptr) return;
  const Unlocked unlocked;
  // Slots end at page boundaries, so they take a little more: up to 1/64, and 1 MiB for small ones.
  const std::size_t wanted = bytes + bytes / 64 + (std::size_t{1} << 20);
  pinned->reserve(wanted - std::min(wanted, pool->stats().free_bytes));
}

py::array empty(const py::object& self, std::size_t bytes) {
  const auto pool = pool_of(self);
  Lease lease;
  {
    const Unlocked unlocked;  // the driver may pin
    lease = pool->acquire(bytes, SlotPool::roomy(bytes));
  }
  return array_over(std::move(lease), py::dtype::of<std::uint8_t>(),
                    {static_cast<py::ssize_t>(bytes)});
}

std::string complaint(const py::object& self) {
  const std::shared_ptr<PinnedMemory> pinned = self.cast<PySlotPool&>().pinned;
  return pinned == nullptr ? "" : pinned->complaint();
}

}  // namespace

void register_batch(py::module_& module) {
  using namespace py::literals;
  py::class_<PySlotPool>(module, "SlotPool", "The memory of a loader's batches.")
      .def(py::init([](std::optional<std::shared_ptr<CudaDevice>> device) {
             return PySlotPool{device.value_or(nullptr), nullptr, nullptr};
           }),
           "device"_a = py::none())
      .def("reserve", &reserve,
           "Pins memory for this many bytes at once, if there is a device and less is free.",
           "bytes"_a)
      .def("empty", &empty,
           "Returns memory of the pool as an array; it is returned when the array is freed.",
           "bytes"_a)
      .def_property_readonly(
          "complaint", &complaint,
          "Why some of the memory is not pinned, and what to do; empty if all is.")
      .def_property_readonly("pinned_bytes",
                             [](const PySlotPool& self) {
                               return self.pinned == nullptr ? 0 : self.pinned->pinned_bytes();
                             })
      .def_property_readonly(
          "allocation_count",
          [](const py::object& self) { return pool_of(self)->stats().allocation_count; })
      .def_property_readonly(
          "used_bytes", [](const py::object& self) { return pool_of(self)->stats().used_bytes; })
      .def_property_readonly(
          "free_bytes", [](const py::object& self) { return pool_of(self)->stats().free_bytes; });

  module.def("crc32c", &checksum, "CRC32C of bytes, continuing from crc.", "data"_a, "crc"_a = 0);
  module.def("crc32c_combine", &crc32c_combine, "CRC32C of two parts, one after the other.",
             "crc_a"_a, "crc_b"_a, "length_b"_a);
  module.def("start_writeback", &start_writeback,
             "Starts writing a range of a file to its disk; does not wait.", "descriptor"_a,
             "offset"_a, "size_bytes"_a);
  module.def(
      "copy_kernels",
      [] {
        std::vector<std::string> names;
        for (const CopyKernel& kernel : copy_kernels()) names.emplace_back(kernel.name);
        return names;
      },
      "The copy kernels of this CPU, the fastest first.");
  module.def(
      "set_copy_kernel", [](const std::string& name) { set_copy_kernel(name); },
      "Selects the copy kernel; for tests and benchmarks.", "name"_a);
}

}  // namespace fastload::bindings
