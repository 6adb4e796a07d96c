// SPDX-License-Identifier: BSD-3-Clause
// CommDebugMode: which collectives a piece of code costs this rank, and what
// caused them.
//
//   CommDebugMode comm;
//   model->forward(x).sum().backward();
//   comm.get_total_counts();                                      // 4
//   comm.get_comm_counts()[CollectiveKind::kAllReduce];           // 4
//   comm.total({.module = "mlp.w2", .backward = false}).count;    // 1
//   std::cout << comm;                                            // a table
#pragma once

#include <dtensor/api.h>
#include <dtensor/comm/observer.h>

#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace dtensor {

/// Collectives of one kind with one cause.
struct CommRecord {
  /// Full name of the styled module that communicated; "gradients" for the
  /// reduction of parameter gradients; empty outside styled modules.
  std::string module;
  bool backward = false;
  CollectiveKind kind = CollectiveKind::kBarrier;
  /// The mesh dimension.
  std::string mesh_dim;
  int64_t count = 0;
  /// Bytes of this rank's inputs, and bytes that it sends with
  /// bandwidth-optimal algorithms.
  int64_t payload_bytes = 0;
  double wire_bytes = 0;
};

struct CommTotal {
  int64_t count = 0;
  int64_t payload_bytes = 0;
  double wire_bytes = 0;
};

/// What to count: all that is given must agree.
struct CommFilter {
  std::optional<CollectiveKind> kind = std::nullopt;
  std::optional<std::string> mesh_dim = std::nullopt;
  std::optional<std::string> module = std::nullopt;
  std::optional<bool> backward = std::nullopt;
};

/// Counts the collectives of this rank while it lives. Modes nest.
/// Collectives over one rank do not happen and are not counted.
/// Python: torch.distributed.tensor.debug.CommDebugMode.
class DTENSOR_API CommDebugMode final : public CommObserver {
 public:
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
  /// Forgets what was counted.
  void reset();

  /// A line per record and one for the sum, aligned.
  std::string generate_comm_debug_tracing_table() const;
  /// The records as a JSON array of objects.
  std::string generate_json_dump() const;

  void on_collective(const CollectiveEvent& event) override;

 private:
  std::vector<CommRecord> records_;
  CommObserverGuard guard_{*this};
};

/// The table.
DTENSOR_API std::ostream& operator<<(std::ostream& os, const CommDebugMode& m);

} // namespace dtensor
