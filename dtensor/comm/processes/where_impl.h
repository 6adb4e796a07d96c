// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Who speaks in the errors of several files: what the user called or named.

namespace dtensor::detail {

inline constexpr const char* kInitProcessGroup = "init_process_group";
inline constexpr const char* kSharedMemory = "shared_memory_backend";
inline constexpr const char* kMpi = "mpi";

} // namespace dtensor::detail
