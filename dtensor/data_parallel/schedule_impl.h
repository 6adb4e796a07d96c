// SPDX-License-Identifier: BSD-3-Clause
// Schedule: decides when each unit of a model gathers and frees its parameters,
// and which parameters are prefetched. The units of one model share a Schedule.
//
// Plain modules do not signal the end of their forward pass. Therefore a unit
// frees its parameters when another unit begins that is not nested in it. The
// order of units in the last forward pass determines the prefetches of the
// current one. The backward pass prefetches in reverse order of the current
// forward pass.
#pragma once

#include <dtensor/comm/pending.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace dtensor::detail {

class Gathering;
class Unit;
using UnitPtr = std::shared_ptr<Unit>;

class Schedule : public std::enable_shared_from_this<Schedule> {
 public:
  /// Gathers the parameters of `unit`, because an operator is about to use
  /// `parameter`, or its module begins (nullopt).
  void begin_forward(Unit& unit, std::optional<size_t> parameter);
  /// Ends the forward pass of the unit's module.
  void end_forward(Unit& unit);
  /// Refills `gathering`, a gathering of `unit`, because a node of the graph is
  /// about to read its unsharded `parameter`.
  void begin_backward(Unit& unit, Gathering& gathering, size_t parameter);
  /// Called when all gradients of a unit are computed.
  void end_backward();

  /// true: backward passes leave finish() to FSDPModule::finalize_backward().
  void set_manual_finalization(bool enabled) {
    is_manual_ = enabled;
  }
  bool is_manual() const {
    return is_manual_;
  }
  /// True if a backward pass has ended without finish().
  bool awaits_finish() const {
    return awaits_finish_;
  }
  /// Mark the time from finalize_backward() until finish().
  void begin_finalizing() {
    is_finalizing_ = true;
  }
  bool is_finalizing() const {
    return is_finalizing_;
  }
  /// Waits for the reduction and frees the parameters that still are unsharded.
  /// Ends the backward pass.
  void finish();

  /// Keep track of the reduction in flight. A new reduction starts after the
  /// previous one ends, so that only one unit's gradients use memory at a time.
  void follow(PendingPtr reduction);
  void wait_for_reduction();

  /// Records that the unit's parameters are gathered or being gathered.
  void note_gathered(Unit& unit);

 private:
  void begin_pass();
  void release_others(const Unit& unit, bool in_backward);
  void gather_next(const Unit& unit);
  void gather_previous(Unit& unit);
  void finish_at_end();

  std::vector<std::weak_ptr<Unit>> gathered_;
  // Order of units in this forward pass and the last one.
  std::vector<std::weak_ptr<Unit>> pass_;
  std::vector<std::weak_ptr<Unit>> last_pass_;
  const Unit* forward_ = nullptr; // latest to begin its forward pass
  const Unit* backward_ = nullptr;
  size_t backward_at_ = 0; // position of the backward pass in `pass_`
  bool pass_is_over_ = false;
  int task_ = -1; // backward pass that calls finish() at its end
  bool is_manual_ = false;
  bool awaits_finish_ = false;
  bool is_finalizing_ = false;
  PendingPtr reduction_;
};

} // namespace dtensor::detail
