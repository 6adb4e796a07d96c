// SPDX-License-Identifier: BSD-3-Clause
// CommDebugMode: records this rank's collectives with their causes, and the
// operators that ran, with their layouts.
//
//   CommDebugMode comm;
//   model->forward(x).sum().backward();
//   comm.get_total_counts();                                      // 4
//   comm.get_comm_counts()[CollectiveKind::kAllReduce];           // 4
//   comm.total({.module = "mlp.w2", .backward = false}).count;    // 1
//   std::cout << comm;                                            // a table
//   comm.generate_comm_debug_tracing_table(1);                    // operators
//
// With a model, it also names modules without parallel styles:
//
//   CommDebugMode comm(*model);
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/comm/observer.h>
#include <dtensor/layout/placement.h>

#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

namespace detail {
class OperatorLog;
}

/// Collectives of one kind with the same cause.
struct CommRecord {
  /// Full name of the module with a parallel style that caused them;
  /// "gradients" for the reduction of parameter gradients; empty if no such
  /// module did.
  std::string module;
  /// True in a backward pass.
  bool backward = false;
  CollectiveKind kind = CollectiveKind::kBarrier;
  /// The mesh dimension.
  std::string mesh_dim;
  /// Number of collectives.
  int64_t count = 0;
  /// Total bytes of this rank's inputs, and bytes that the rank sends with
  /// bandwidth-optimal algorithms.
  int64_t payload_bytes = 0;
  double wire_bytes = 0;
};

/// Sums over records.
struct CommTotal {
  int64_t count = 0;
  int64_t payload_bytes = 0;
  double wire_bytes = 0;
  friend bool operator==(const CommTotal&, const CommTotal&) = default;
};

/// Criteria for records. A record must match all given values.
struct CommFilter {
  std::optional<CollectiveKind> kind = std::nullopt;
  std::optional<std::string> mesh_dim = std::nullopt;
  std::optional<std::string> module = std::nullopt;
  std::optional<bool> backward = std::nullopt;
};

/// Scope that records the collectives and operators of this rank. Modes nest.
/// Collectives in a group of one rank are no-ops and are not counted.
///
/// The noise level sets the amount of output, as in Python. Each level adds to
/// the one before:
///   0  collectives by module
///   1  the operators on DTensors that each module ran, with the layouts of
///      their operands
///   2  all other operators except trivial ones (detach, t, view, _to_copy,
///      as_strided, transpose)
///   3  trivial operators
/// The default is 0 (Python: 3): a table with one line per cause, which shows
/// the costs. Higher levels show which operators cause them. Throws ValueError
/// for any other level.
/// Python: torch.distributed.tensor.debug.CommDebugMode.
class DTENSOR_API CommDebugMode final : public CommObserver {
 public:
  /// Attributes work to modules with a parallel style only.
  CommDebugMode();
  /// Also attributes work to modules of `model` that have no style: operators
  /// that read a module's parameters, and everything in modules declared with
  /// DTENSOR_MODULE (parallel/module_hooks.h). The model must outlive the mode.
  /// Parameters that are added later are not attributed.
  explicit CommDebugMode(torch::nn::Module& model);
  ~CommDebugMode() override;

  /// Returns the number of collectives so far.
  int64_t get_total_counts() const;
  /// Returns the number of collectives per kind, without kinds that did not
  /// occur.
  std::map<CollectiveKind, int64_t> get_comm_counts() const;
  /// Returns the count and bytes of the records that match `filter`.
  CommTotal total(const CommFilter& filter = {}) const;
  /// Returns the records, one per module, pass, kind and mesh dimension, in the
  /// order of first occurrence.
  const std::vector<CommRecord>& records() const {
    return records_;
  }
  /// Clears all records.
  void reset();

  /// Returns a map module -> parameter -> tensor (detached), for each module
  /// that has parameters of its own ("": the model itself). Throws RuntimeError
  /// if the mode was constructed without a model.
  std::map<std::string, std::map<std::string, at::Tensor>> get_parameter_info()
      const;
  /// Returns a map from the names of parameters that are DTensors ("w1.weight")
  /// to their layouts. Throws RuntimeError if the mode was constructed without
  /// a model.
  std::map<std::string, Placements> get_sharding_info() const;

  /// Returns an aligned table with a line per record and a line for the sum.
  /// From noise level 1, the modules follow with their parameters, collectives
  /// and operators.
  std::string generate_comm_debug_tracing_table(int64_t noise_level = 0) const;
  /// Writes the table to a file. Throws RuntimeError if writing fails.
  void log_comm_debug_tracing_table_to_file(
      const std::string& file_name = "comm_mode_log.txt",
      int64_t noise_level = 0) const;
  /// Returns the records as a JSON array of objects. From noise level 1: an
  /// object {"collectives": the records, "modules": an array of {"name",
  /// "type", "parameters", "forward", "backward"}}. "forward" and "backward"
  /// are arrays of operators {"name", "operands", "mesh", "count", "calls":
  /// operators}.
  std::string generate_json_dump(int64_t noise_level = 0) const;
  /// Writes the JSON to a file. Throws RuntimeError if writing fails.
  void generate_json_dump(const std::string& file_name, int64_t noise_level = 0)
      const;

  void on_collective(const CollectiveEvent& event) override;

 private:
  const torch::nn::Module& model(const char* wanted_by) const;

  std::vector<CommRecord> records_;
  const torch::nn::Module* model_ = nullptr;
  std::unique_ptr<detail::OperatorLog> operators_;
  CommObserverGuard guard_{*this};
};

/// Prints the table of noise level 0.
DTENSOR_API std::ostream& operator<<(std::ostream& os, const CommDebugMode& m);

} // namespace dtensor
