// SPDX-License-Identifier: BSD-3-Clause
// CommDebugMode: which collectives a piece of code costs this rank, and what
// caused them; and which operators it ran, in which layouts.
//
//   CommDebugMode comm;
//   model->forward(x).sum().backward();
//   comm.get_total_counts();                                      // 4
//   comm.get_comm_counts()[CollectiveKind::kAllReduce];           // 4
//   comm.total({.module = "mlp.w2", .backward = false}).count;    // 1
//   std::cout << comm;                                            // a table
//   comm.generate_comm_debug_tracing_table(1);                    // operators
//
// Told of the model, it also names modules that no style has named:
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
#include <tuple>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

namespace detail {
class OperatorLog;
}

/// Collectives of one kind with one cause.
struct CommRecord {
  /// Full name of the styled module that communicated; "gradients" for the
  /// reduction of parameter gradients; empty outside styled modules.
  std::string module;
  /// Whether it happened in a backward pass, and what it was.
  bool backward = false;
  CollectiveKind kind = CollectiveKind::kBarrier;
  /// The mesh dimension.
  std::string mesh_dim;
  /// How many there were.
  int64_t count = 0;
  /// Bytes of this rank's inputs, and bytes that it sends with
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

/// What to count: all that is given must agree.
struct CommFilter {
  std::optional<CollectiveKind> kind = std::nullopt;
  std::optional<std::string> mesh_dim = std::nullopt;
  std::optional<std::string> module = std::nullopt;
  std::optional<bool> backward = std::nullopt;
};

/// Counts the collectives of this rank while it lives, and notes its operators.
/// Modes nest. Collectives over one rank do not happen and are not counted.
///
/// How much is printed is a noise level, as in Python:
///   0  collectives by module
///   1  and the operators on DTensors that each module ran, with the layouts of
///      their operands
///   2  and all other operators but trivial ones (detach, t, view, _to_copy,
///      as_strided, transpose)
///   3  and those
/// The default is 0, where Python's is 3: a table of one line for each cause
/// answers what something costs; operators are for those who look for why.
/// Any other level is a ValueError.
/// Python: torch.distributed.tensor.debug.CommDebugMode.
class DTENSOR_API CommDebugMode final : public CommObserver {
 public:
  /// Modules have the names that styles have given them.
  CommDebugMode();
  /// What modules of `model` do is theirs also where no style has named them:
  /// what reads their parameters, and all of those declared with
  /// DTENSOR_MODULE (parallel/module_hooks.h). The model outlives the mode; its
  /// parameters are those that it has now.
  explicit CommDebugMode(torch::nn::Module& model);
  ~CommDebugMode() override;

  /// All collectives so far.
  int64_t get_total_counts() const;
  /// How many of each kind; kinds that did not occur are not listed.
  std::map<CollectiveKind, int64_t> get_comm_counts() const;
  /// Count and bytes of those that fit.
  CommTotal total(const CommFilter& filter = {}) const;
  /// One record per module, pass, kind and mesh dimension, in the order in
  /// which they first occurred.
  const std::vector<CommRecord>& records() const {
    return records_;
  }
  /// Forgets what was counted and noted.
  void reset();

  /// Module -> parameter -> tensor without history, of each module that has
  /// parameters of its own ("": the model itself).
  /// Throws RuntimeError if the mode was made without a model.
  std::map<std::string, std::map<std::string, at::Tensor>> get_parameter_info()
      const;
  /// "w1.weight" -> its layout, of parameters that are DTensors.
  /// Throws RuntimeError if the mode was made without a model.
  std::map<std::string, Placements> get_sharding_info() const;

  /// A line per record and one for the sum, aligned. From noise level 1 on,
  /// modules follow with their parameters, collectives and operators.
  std::string generate_comm_debug_tracing_table(int64_t noise_level = 0) const;
  /// Writes that to a file. Throws RuntimeError if it cannot be written.
  void log_comm_debug_tracing_table_to_file(
      const std::string& file_name = "comm_mode_log.txt",
      int64_t noise_level = 0) const;
  /// The records as a JSON array of objects. From noise level 1 on, an object
  /// {"collectives": that array, "modules": an array of {"name", "type",
  /// "parameters", "forward", "backward"}}, where the last two are operators
  /// {"name", "operands", "mesh", "count", "calls": operators}.
  std::string generate_json_dump(int64_t noise_level = 0) const;
  /// Writes that to a file. Throws RuntimeError if it cannot be written.
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

/// The table.
DTENSOR_API std::ostream& operator<<(std::ostream& os, const CommDebugMode& m);

} // namespace dtensor
