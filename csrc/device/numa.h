// Memory near a device, on machines with several NUMA nodes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fastload {

// The node beside a PCI device ("0000:3B:00.0"); -1: unknown, or there is but one.
int numa_node_of(const std::string& pci_id, const std::string& sysfs = "/sys");

// The node's CPUs; none if unknown.
std::vector<int> cpus_of_node(int node, const std::string& sysfs = "/sys");

// Gives fresh anonymous memory its pages, on `node` if it has room (-1: anywhere). A large piece
// is touched by several threads. `data` starts a page; the memory reads as zeros afterwards.
// Returns false if the system has no memory left.
bool populate(std::byte* data, std::size_t bytes, int node);

}  // namespace fastload
