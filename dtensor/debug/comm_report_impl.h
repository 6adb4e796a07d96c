// SPDX-License-Identifier: BSD-3-Clause
// What CommDebugMode prints.
#pragma once

#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/debug/operator_log_impl.h>

#include <string>
#include <vector>

namespace dtensor::detail {

/// What to print of a mode, from noise level 1 on.
struct CommReport {
  const std::vector<CommRecord>& records;
  const OperatorLog& operators;
  const torch::nn::Module* model; // may be null
  int64_t noise_level;
};

/// A line for each record and one for the sum.
std::string comm_table(
    const std::vector<CommRecord>& records,
    const CommTotal& sum);
/// A paragraph for each module.
std::string module_text(const CommReport& report);

/// An array with a line for each record.
std::string comm_json(const std::vector<CommRecord>& records);
/// An object with them and the modules.
std::string module_json(const CommReport& report);

} // namespace dtensor::detail
