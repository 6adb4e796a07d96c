// SPDX-License-Identifier: BSD-3-Clause
// CommObserver: the interface that is notified of every collective that this
// rank enters. The classes in debug/ implement it, so comm/ itself neither
// counts nor prints.
#pragma once

#include <dtensor/api.h>
#include <dtensor/layout/cost.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace dtensor {

/// One collective, seen from the rank that enters it.
struct CollectiveEvent {
  CollectiveKind kind = CollectiveKind::kBarrier;
  /// Bytes of this rank's input.
  int64_t payload_bytes = 0;
  /// Bytes that this rank sends with a bandwidth-optimal algorithm (see the
  /// table in docs/concepts/communication.md).
  double wire_bytes = 0;
  /// Number of ranks in the group.
  int64_t group_size = 0;
  /// Group::label(): the mesh dimension.
  std::string_view label;
  /// Full name of the module with a parallel style that caused the collective;
  /// "gradients" for the reduction of parameter gradients; empty if no such
  /// module did.
  std::string_view module = {};
  /// True if the rank entered the collective during a backward pass.
  bool backward = false;
};

/// Observer of collectives: derive from it, and install it with a
/// CommObserverGuard.
class DTENSOR_API CommObserver {
 public:
  virtual ~CommObserver() = default;
  /// Called by the rank that enters a collective, in its thread.
  virtual void on_collective(const CollectiveEvent& event) = 0;
};

/// Scope in which `observer` is notified of this rank's collectives. Scopes
/// nest: each observer is notified of every event.
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
/// comm_observed() returns true if this rank has an observer.
/// notify_comm_observers() notifies all of them, with `module` and `backward`
/// from the innermost ModuleScope.
DTENSOR_API bool comm_observed();
DTENSOR_API void notify_comm_observers(CollectiveEvent event);

/// Scope in which observers of this rank are not notified.
class DTENSOR_API CommObserversPaused {
 public:
  CommObserversPaused();
  ~CommObserversPaused();
  CommObserversPaused(const CommObserversPaused&) = delete;
  CommObserversPaused& operator=(const CommObserversPaused&) = delete;
};

/// Returns a copy of the name that lives as long as the process; equal names
/// share one copy.
DTENSOR_API std::string_view keep_module_name(const std::string& name);

/// Scope that attributes this rank's collectives to `module`. The name must
/// outlive every autograd graph: a literal, or a name from keep_module_name().
class DTENSOR_API ModuleScope {
 public:
  explicit ModuleScope(std::string_view module, bool backward = false);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

  /// Returns this rank's innermost module.
  static std::string_view current();

 private:
  std::string_view outer_;
  bool outer_backward_;
};
} // namespace detail

} // namespace dtensor
