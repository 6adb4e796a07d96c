// SPDX-License-Identifier: BSD-3-Clause
// CommObserver: hears of every collective that this rank enters. debug/ listens
// through it, so comm/ knows nothing of counting and printing.
#pragma once

#include <dtensor/api.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace dtensor {

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kScatter,
  kGather,
  kSend,
  kRecv,
  kBarrier,
};

/// "all_reduce", "all_gather", ...
DTENSOR_API std::string_view to_string(CollectiveKind kind);

/// One collective, as the rank that enters it sees it.
struct CollectiveEvent {
  CollectiveKind kind = CollectiveKind::kBarrier;
  /// Bytes of this rank's input.
  int64_t payload_bytes = 0;
  /// Bytes this rank sends with a bandwidth-optimal algorithm (the table in
  /// docs/concepts/communication.md).
  double wire_bytes = 0;
  int64_t group_size = 0;
  /// Group::label(): the mesh dimension.
  std::string_view label;
};

class DTENSOR_API CommObserver {
 public:
  virtual ~CommObserver() = default;
  virtual void on_collective(const CollectiveEvent& event) = 0;
};

/// Installs an observer for this rank (thread) while it lives. Observers nest:
/// all of them hear every event.
class DTENSOR_API CommObserverGuard {
 public:
  explicit CommObserverGuard(CommObserver& observer);
  ~CommObserverGuard();
  CommObserverGuard(const CommObserverGuard&) = delete;
  CommObserverGuard& operator=(const CommObserverGuard&) = delete;

 private:
  CommObserver* observer_;
};

namespace detail {
/// Whether this rank has an observer, and telling it.
DTENSOR_API bool comm_observed();
DTENSOR_API void notify_comm_observers(const CollectiveEvent& event);
} // namespace detail

} // namespace dtensor
