// Places memory near a device, on machines with several NUMA nodes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fastload {

// The node next to a PCI device ("0000:3B:00.0"); -1 if it is unknown or the machine has one node.
// `sysfs`: replaced by tests. Thread-safe, as all functions here.
int numa_node_of(const std::string& pci_id, const std::string& sysfs = "/sys");

// The CPUs of a node; empty if they are unknown.
std::vector<int> cpus_of_node(int node, const std::string& sysfs = "/sys");

// Allocates the pages of fresh anonymous memory, on `node` if that has room (-1: on any). Large
// memory is touched by several threads, which are joined before it returns. REQUIRES: `data` is
// page-aligned. The memory then holds zeros. Returns false if the system has no memory left.
bool populate(std::byte* data, std::size_t bytes, int node);

}  // namespace fastload
