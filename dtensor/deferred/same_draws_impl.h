// SPDX-License-Identifier: BSD-3-Clause
// Random numbers of a tape: a call draws the same numbers whenever it is
// replayed.
#pragma once

#include <ATen/core/enum_tag.h>
#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/deferred/tape_impl.h>
#include <dtensor/random/sample_impl.h>

#include <functional>
#include <vector>

namespace dtensor::detail {

/// Returns true if the call draws random numbers.
inline bool draws(const TapeCall& call) {
  return call.op.hasTag(at::Tag::nondeterministic_seeded) ||
      call.op.schema().argumentIndexWithName("generator").has_value();
}

/// A scope in which a call draws the numbers that it drew when it was first
/// played. Plain and distributed numbers have separate states, because a call
/// may be played on plain tensors (when its values are needed) before it is
/// played on DTensors.
class SameDraws {
 public:
  SameDraws(TapeCall& call, bool distributed) {
    if (!draws(call)) {
      return;
    }
    begin(call.generator, copy_of_default_generator(), [](const auto& state) {
      set_default_generator(state);
    });
    if (distributed) {
      begin(call.draw, peek_draw(), set_next_draw);
    }
  }
  ~SameDraws() {
    for (const auto& restore : restores_) {
      restore();
    }
  }
  SameDraws(const SameDraws&) = delete;
  SameDraws& operator=(const SameDraws&) = delete;

 private:
  template <class State, class GoTo>
  void begin(FirstDraw<State>& first, const State& now, GoTo go_to) {
    if (!first.before) {
      first.before = now;
      return;
    }
    go_to(*first.before);
    if (first.is_done) {
      restores_.push_back([=] { go_to(now); });
    }
  }
  std::vector<std::function<void()>> restores_;
};

} // namespace dtensor::detail
