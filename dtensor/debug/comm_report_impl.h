// SPDX-License-Identifier: BSD-3-Clause
// Reports of CommDebugMode.
#pragma once

#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/debug/operator_log_impl.h>

#include <string>
#include <vector>

namespace dtensor::detail {

/// Contents of a report, from noise level 1.
struct CommReport {
  const std::vector<CommRecord>& records;
  const OperatorLog& operators;
  const torch::nn::Module* model; // may be null
  int64_t noise_level;
};

/// Returns a table with a line per record and a line for the sum.
std::string comm_table(
    const std::vector<CommRecord>& records,
    const CommTotal& sum);
/// Returns a paragraph per module.
std::string module_text(const CommReport& report);

/// Returns a JSON array with a line per record.
std::string comm_json(const std::vector<CommRecord>& records);
/// Returns a JSON object with the records and the modules.
std::string module_json(const CommReport& report);

} // namespace dtensor::detail
