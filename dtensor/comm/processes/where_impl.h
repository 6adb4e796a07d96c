// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Prefixes of errors that several files throw: the function or backend that the
// caller named.

namespace dtensor::detail {

inline constexpr const char* kInitProcessGroup = "init_process_group";
inline constexpr const char* kSharedMemory = "shared_memory_backend";
inline constexpr const char* kMpi = "mpi";

} // namespace dtensor::detail
