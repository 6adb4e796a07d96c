// SPDX-License-Identifier: BSD-3-Clause
// Counts of the collectives of parallelized modules, as text.
#pragma once

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/debug/comm_debug_mode.h>

#include <map>
#include <string>

namespace dtensor::test_modules {

/// Returns the counts of the forward or backward pass, such as "2 all_gather, 1
/// all_reduce", without the reduction of parameter gradients.
inline std::string counts(const CommDebugMode& comm, bool backward) {
  std::map<std::string, int64_t> by_kind;
  for (const auto& r : comm.records()) {
    if (r.backward == backward && r.module != "gradients") {
      by_kind[std::string(to_string(r.kind))] += r.count;
    }
  }
  std::string text;
  for (const auto& [kind, count] : by_kind) {
    text += c10::str(text.empty() ? "" : ", ", count, " ", kind);
  }
  return text;
}

template <class Fn>
void on_four_ranks(const Fn& fn) {
  run_ranks(4, [&] { fn(init_device_mesh(at::kCPU, {4}, {"tp"})); });
}

} // namespace dtensor::test_modules
