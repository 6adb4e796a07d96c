// SPDX-License-Identifier: BSD-3-Clause
// Schedule: which of a model's units have their parameters when, and what is
// gathered ahead. The units of one model share it.
//
// Nothing tells when a module's forward ends: a unit gives its memory back when
// one begins that is not inside of it. What came after what in the last forward
// pass is gathered ahead in this one; backward takes this pass in reverse.
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
  /// An operator is about to use a parameter of the unit, or, without one, its
  /// module begins: the unit has its parameters afterwards.
  void begin_forward(Unit& unit, std::optional<size_t> parameter);
  /// The unit's module has said that its forward is over.
  void end_forward(Unit& unit);
  /// A node of the graph is about to read the whole of a parameter in
  /// `gathering`, which the unit made.
  void begin_backward(Unit& unit, Gathering& gathering, size_t parameter);
  /// The unit's gradients are there.
  void end_backward();

  /// One reduction at a time is under way, so that no more than one unit's
  /// gradients are kept for it.
  void follow(PendingPtr reduction);
  void wait_for_reduction();

  /// Notes that the unit has its parameters.
  void note_gathered(Unit& unit);

 private:
  void begin_pass();
  void release_others(const Unit& unit, bool in_backward);
  void gather_next(const Unit& unit);
  void gather_previous(Unit& unit);
  void finish_at_end();
  void finish();

  std::vector<std::weak_ptr<Unit>> gathered_;
  // Of this forward pass and the last one.
  std::vector<std::weak_ptr<Unit>> pass_;
  std::vector<std::weak_ptr<Unit>> last_pass_;
  const Unit* forward_ = nullptr; // the one that began last
  const Unit* backward_ = nullptr;
  size_t backward_at_ = 0; // place in `pass_` that backward has come to
  bool pass_is_over_ = false;
  int task_ = -1; // the backward pass at whose end finish() is called
  PendingPtr reduction_;
};

} // namespace dtensor::detail
