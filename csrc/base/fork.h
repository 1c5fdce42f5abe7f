// Which process this is, cheaply: a counter that grows in every forked child.
//
// NOTE [Fork]. Threads do not survive fork() and a mutex may be copied while it is locked. So each
// object that owns threads or a mutex remembers the generation it was made in; in a child it is
// left alone: its destructor does nothing, its threads and locks are leaked, and using it raises.
#pragma once

#include <cstdint>

namespace fastload {

// The number of forks between the process that loaded the library and this one. Thread-safe.
std::uint64_t fork_generation();

}  // namespace fastload
