// The structs by which frameworks exchange tensors, from DLPack 0.8 (github.com/dmlc/dlpack). Their
// layout is an ABI: it must not change here.
#pragma once

#include <cstdint>

namespace fastload::bindings::dlpack {

inline constexpr std::int32_t kCpu = 1;              // DLDeviceType
inline constexpr const char* kCapsule = "dltensor";  // its consumer renames it

struct Device {
  std::int32_t type;
  std::int32_t number;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t dimensions;
  DataType type;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements
  std::uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor* self);  // on any thread, with or without the GIL
};

static_assert(sizeof(DataType) == 4 && sizeof(ManagedTensor) == 64);

}  // namespace fastload::bindings::dlpack
