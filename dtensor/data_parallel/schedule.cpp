// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/data_parallel/schedule_impl.h>

#include <ATen/core/grad_mode.h>
#include <dtensor/comm/world.h>
#include <dtensor/data_parallel/gathering_impl.h>
#include <dtensor/data_parallel/unit_impl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {
namespace {

// Limit of a recorded pass. Without a limit, a loop of forward passes without
// backward pass would grow the list forever.
constexpr size_t kLongestPass = 10000;

void gather_ahead(const Unit::Units& units) {
  for (const auto& weak : units) {
    if (const auto unit = weak.lock()) {
      unit->gather_ahead();
    }
  }
}

bool in_backward_pass() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

} // namespace

void Schedule::begin_forward(Unit& unit, std::optional<size_t> parameter) {
  // Recomputation inside a backward pass is not recorded.
  const bool begins =
      (forward_ != &unit || pass_is_over_) && !in_backward_pass();
  if (begins) {
    begin_pass();
    release_others(unit, /*in_backward=*/false);
    forward_ = &unit;
  }
  parameter ? unit.gather_for_parameter(*parameter) : unit.gather();
  if (begins) {
    if (c10::GradMode::is_enabled() && pass_.size() < kLongestPass) {
      pass_.push_back(unit.weak_from_this());
    }
    gather_next(unit);
  }
}

void Schedule::end_forward(Unit& unit) {
  if (!unit.is_open() && !in_backward_pass() && unit.reshards_after_forward()) {
    unit.release(/*after_forward=*/true);
    forward_ = nullptr;
  }
}

void Schedule::begin_pass() {
  if (pass_is_over_) {
    last_pass_ = std::exchange(pass_, {});
    pass_is_over_ = false;
    backward_ = nullptr;
  }
}

void Schedule::begin_backward(
    Unit& unit,
    Gathering& gathering,
    size_t parameter) {
  pass_is_over_ = true;
  finish_at_end();
  const bool begins = backward_ != &unit;
  if (begins) {
    release_others(unit, /*in_backward=*/true);
    backward_ = &unit;
  }
  unit.refill(gathering, parameter);
  if (begins) {
    gather_previous(unit);
  }
}

void Schedule::end_backward() {
  pass_is_over_ = true;
  finish_at_end();
}

// Frees the parameters of other units, except units around `unit`. The forward
// pass frees units that reshard after forward. The backward pass frees units
// without pending gradients.
void Schedule::release_others(const Unit& unit, bool in_backward) {
  // Iterates over a copy, since release() may change the list.
  for (const auto& weak : std::vector(gathered_)) {
    const auto other = weak.lock();
    if (other == nullptr || other.get() == &unit || unit.is_inside(*other)) {
      continue;
    }
    if (in_backward ? !other->awaits_gradients()
                    : other->reshards_after_forward()) {
      other->release(/*after_forward=*/!in_backward);
    }
  }
  std::erase_if(gathered_, [](const auto& weak) {
    const auto other = weak.lock();
    return other == nullptr || !other->is_gathered();
  });
}

// Prefetches the unit that came next in the last forward pass, if `unit` is at
// the same position in both passes.
void Schedule::gather_next(const Unit& unit) {
  if (!unit.settings.forward_prefetch.empty()) {
    gather_ahead(unit.settings.forward_prefetch);
  } else if (
      !pass_.empty() && last_pass_.size() > pass_.size() &&
      last_pass_[pass_.size() - 1].lock().get() == &unit) {
    gather_ahead({last_pass_[pass_.size()]});
  }
}

// Prefetches the unit before `unit` in this forward pass. Searches from the
// last position towards the front, as a unit may occur several times.
void Schedule::gather_previous(Unit& unit) {
  if (!unit.settings.backward_prefetch.empty()) {
    gather_ahead(unit.settings.backward_prefetch);
    return;
  }
  size_t at = std::min(backward_at_, pass_.size());
  while (at > 0 && pass_[at - 1].lock().get() != &unit) {
    --at;
  }
  if (at == 0) {
    return; // order differs from that of the forward pass
  }
  backward_at_ = at - 1;
  if (backward_at_ > 0) {
    gather_ahead({pass_[backward_at_ - 1]});
  }
}

void Schedule::follow(PendingPtr reduction) {
  reduction_ = std::move(reduction);
}

void Schedule::wait_for_reduction() {
  if (const auto under_way = std::exchange(reduction_, nullptr)) {
    under_way->wait();
  }
}

void Schedule::note_gathered(Unit& unit) {
  const auto known = [&](const auto& weak) {
    return weak.lock().get() == &unit;
  };
  if (std::ranges::none_of(gathered_, known)) {
    gathered_.push_back(unit.weak_from_this());
  }
}

// Queues finish() once per backward pass, unless the program calls it. The
// callback captures the world, because it runs outside of any node, possibly on
// a thread that belongs to no rank.
void Schedule::finish_at_end() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (task == task_) {
    return;
  }
  task_ = task;
  backward_at_ = pass_.size();
  awaits_finish_ = true;
  if (is_manual_) {
    return;
  }
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = weak_from_this(), world = this_world()] {
        const WorldScope scope(world);
        if (const auto schedule = self.lock()) {
          schedule->finish();
        }
      });
}

void Schedule::finish() {
  wait_for_reduction();
  for (const auto& weak : std::exchange(gathered_, {})) {
    const auto unit = weak.lock();
    if (unit == nullptr) {
      continue;
    }
    if (unit->settings.reshards_after_backward) {
      unit->release(/*after_forward=*/false);
    } else if (unit->is_gathered()) {
      gathered_.push_back(weak);
    }
  }
  forward_ = nullptr;
  backward_ = nullptr;
  task_ = -1;
  awaits_finish_ = false;
  is_finalizing_ = false;
}

} // namespace dtensor::detail
