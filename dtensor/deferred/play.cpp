// SPDX-License-Identifier: BSD-3-Clause
// Playback of a tape. Only calls that the wanted values depend on are played,
// in recorded order, so that a program without DTensors draws the same numbers
// as without the scope. Values that are connected by calls form a group. A
// group that contains wanted DTensors is played on DTensors. A tensor created
// without inputs gets the layout of the DTensor that is computed from it, if
// their shapes are equal. Otherwise the tensor is replicated. If an operator
// throws for such a layout, its group restarts with replicated tensors.
#include <dtensor/deferred/tape_impl.h>

#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/random/random.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

namespace dtensor::detail {
namespace {

// Returns true if the tensor is too large to be backed by memory.
bool is_large(const TapeValue& about) {
  return static_cast<size_t>(numel(about.sizes)) *
      c10::elementSize(about.dtype) >
      kMostOpenBytes;
}

using Factory = at::Tensor (*)(
    SizesRef,
    const DeviceMesh&,
    PlacementsRef,
    const FactoryOptions&);

// Returns the DTensor factory that is equivalent to the call and needs only
// shape and dtype; null if no such factory exists.
Factory factory_of(const TapeCall& c, const TapeValue& about) {
  static const std::map<std::string, Factory> factories = {
      {"aten::zeros", zeros},
      {"aten::ones", ones},
      {"aten::rand", rand},
      {"aten::randn", randn}};
  const auto name = name_of(c.op.operator_name());
  if (name == "aten::empty.memory_format" && c.contents.get() == nullptr) {
    return is_large(about) ? empty : zeros;
  }
  const auto found = factories.find(name);
  return found != factories.end() ? found->second : nullptr;
}

// Returns true if the call draws random numbers.
bool draws(const TapeCall& call) {
  return call.op.hasTag(at::Tag::nondeterministic_seeded) ||
      call.op.schema().argumentIndexWithName("generator").has_value();
}

// A scope in which a call draws the numbers that it drew when it was first
// played. Plain and distributed numbers have separate states, because a call
// may be played on plain tensors (when its values are needed) before it is
// played on DTensors.
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

// Values that are connected by calls.
struct PlayGroup {
  std::vector<size_t> calls;
  DeviceMesh mesh; // undefined: only plain tensors
  bool is_replicated = false;
};

class Player {
 public:
  Player(Tape& tape, const std::vector<RequestedValue>& wanted)
      : tape_(tape),
        wanted_(wanted),
        made_(tape.values().size()),
        layouts_(tape.values().size()),
        last_use_(tape.values().size(), 0),
        is_wanted_(tape.values().size(), false),
        sets_(tape.memory()) {
    for (const auto& w : wanted) {
      is_wanted_[w.value] = true;
    }
  }

  std::vector<at::Tensor> run(bool all_draws) {
    find_calls(all_draws);
    find_groups();
    for (const auto n : calls_) {
      play_or_restart(n);
    }
    std::vector<at::Tensor> results;
    for (const auto& w : wanted_) {
      results.push_back(as_wanted(made_[w.value], w.spec));
    }
    return results;
  }

 private:
  TapeCall& call(size_t n) {
    return tape_.calls()[n];
  }

  template <class Visit>
  void for_each_value(const TapeCall& call, const Visit& visit) const {
    for (const auto* list : {&call.inputs, &call.outputs}) {
      for (const auto value : *list) {
        if (value != Tape::kReal) {
          visit(value);
        }
      }
    }
  }

  // Finds the calls to play, walking backward. A call is needed if it creates
  // or writes memory that a later needed call uses. At the same time, layouts
  // propagate from results to operands. With `all_draws`, unneeded calls that
  // draw random numbers are played too, so that later calls draw the right
  // numbers.
  void find_calls(bool all_draws) {
    std::vector<bool> needed(tape_.values().size(), false);
    for (const auto& w : wanted_) {
      needed[tape_.memory().find(w.value)] = true;
      layouts_[w.value] = w.spec;
    }
    for (size_t n = tape_.calls().size(); n-- > 0;) {
      const auto& c = call(n);
      const auto is_needed = [&](size_t value) {
        return needed[tape_.memory().find(value)];
      };
      if (std::ranges::none_of(c.outputs, is_needed) &&
          std::ranges::none_of(c.written, is_needed) &&
          !(all_draws && draws(c) && !c.generator.before)) {
        continue;
      }
      calls_.push_back(n);
      for_each_value(c, [&](size_t value) {
        needed[tape_.memory().find(value)] = true;
        last_use_[value] = std::max(last_use_[value], n);
      });
      hand_layouts_on(c);
    }
    std::ranges::reverse(calls_);
  }

  void hand_layouts_on(const TapeCall& c) {
    for (const auto out : c.outputs) {
      for (const auto in : c.inputs) {
        if (in != Tape::kReal && layouts_[out] != nullptr &&
            layouts_[in] == nullptr &&
            tape_.values()[in].sizes == tape_.values()[out].sizes) {
          layouts_[in] = layouts_[out];
        }
      }
    }
  }

  void find_groups() {
    for (const auto n : calls_) {
      std::optional<size_t> first;
      for_each_value(call(n), [&](size_t value) {
        first = first.value_or(value);
        sets_.unite(value, *first);
      });
    }
    for (const auto n : calls_) {
      for_each_value(call(n), [&](size_t value) {
        auto& calls = groups_[sets_.find(value)].calls;
        if (calls.empty() || calls.back() != n) {
          calls.push_back(n);
        }
      });
    }
    for (const auto& w : wanted_) {
      if (w.spec == nullptr) {
        continue;
      }
      auto& group = groups_[sets_.find(w.value)];
      group.is_replicated |=
          group.mesh.defined() && group.mesh != w.spec->mesh();
      group.mesh = w.spec->mesh();
    }
  }

  void play_or_restart(size_t n) {
    auto& group = group_with(n);
    check_unchanged(call(n));
    try {
      play_call(n, group);
    } catch (const c10::Error& error) {
      DTENSOR_CHECK(
          group.mesh.defined() && !group.is_replicated,
          "[materialize] {}, which was deferred by a DeferredInit scope, "
          "failed: {}. Correct the constructor that calls it.",
          name_of(call(n).op.operator_name()),
          error.what_without_backtrace());
      group.is_replicated = true;
      for (const auto before : group.calls) {
        if (before <= n) {
          play_or_restart(before);
        }
      }
    }
    forget_after(n);
  }

  PlayGroup& group_with(size_t n) {
    std::optional<size_t> any;
    for_each_value(call(n), [&](size_t value) { any = value; });
    return groups_.at(sets_.find(*any));
  }

  void play_call(size_t n, const PlayGroup& group) {
    auto& c = call(n);
    const SameDraws same(c, group.mesh.defined());
    torch::jit::Stack stack(c.args.begin(), c.args.end());
    map_tensors(stack.data(), stack.size(), [&](const at::Tensor& t, size_t i) {
      return operand(c, i, t, group);
    });
    if (!c.outputs.empty()) {
      set_device_argument(
          c.op.schema(), stack.data(), tape_.values()[c.outputs[0]].device);
    }
    if (c.inputs.empty() && group.mesh.defined()) {
      made_[c.outputs[0]] = made_distributed(c, group, std::move(stack));
    } else {
      c.op.callBoxed(&stack);
      size_t next = 0;
      visit_tensors(stack, [&](const at::Tensor& t, size_t, int) {
        made_[c.outputs.at(next++)] = t;
      });
      if (c.inputs.empty()) {
        fill(c, made_[c.outputs[0]]);
      }
    }
    c.generator.is_done = true;
    c.draw.is_done |= group.mesh.defined();
  }

  static void check_unchanged(const TapeCall& c) {
    size_t i = 0;
    visit_tensors(c.args, [&](const at::Tensor& t, size_t, int) {
      DTENSOR_CHECK(
          c.inputs[i] != Tape::kReal || version_of(t) == c.versions[i],
          "[materialize] {}, which was deferred by a DeferredInit scope, uses "
          "a tensor from outside the scope that has been written to since. "
          "Pass the operator a clone() of that tensor.",
          name_of(c.op.operator_name()));
      ++i;
    });
  }

  at::Tensor operand(
      const TapeCall& c,
      size_t i,
      const at::Tensor& real,
      const PlayGroup& group) const {
    const auto& t = c.inputs[i] == Tape::kReal ? real : made_[c.inputs[i]];
    if (group.mesh.defined() && !is_dtensor(t) && t.dim() > 0) {
      return distribute_tensor(t.detach(), group.mesh, {}, std::nullopt);
    }
    return t;
  }

  // Fills a new tensor with its recorded contents. Small new tensors without
  // recorded contents are zeros.
  static void fill(const TapeCall& c, const at::Tensor& t) {
    if (c.op.schema().name() != "aten::empty") {
      return;
    }
    if (c.contents.get() == nullptr) {
      if (t.nbytes() <= kMostOpenBytes) {
        t.zero_();
      }
      return;
    }
    t.copy_(at::from_blob(
        c.contents.get(),
        t.sizes(),
        t.strides(),
        t.options().device(at::kCPU)));
  }

  at::Tensor made_distributed(
      const TapeCall& c,
      const PlayGroup& group,
      torch::jit::Stack stack) {
    const auto value = c.outputs[0];
    const auto& about = tape_.values()[value];
    const auto& spec = layouts_[value];
    const Placements layout = group.is_replicated || spec == nullptr ||
            spec->sizes() != SizesRef(about.sizes)
        ? replicated_placements(group.mesh)
        : Placements(spec->placements().begin(), spec->placements().end());
    const FactoryOptions options{.dtype = about.dtype};
    if (const auto make = factory_of(c, about)) {
      return make(about.sizes, group.mesh, layout, options);
    }
    if (name_of(c.op.operator_name()) == "aten::full") {
      return full(
          about.sizes, c.args[1].toScalar(), group.mesh, layout, options);
    }
    c.op.callBoxed(&stack);
    const auto full = stack.back().toTensor();
    fill(c, full);
    return distribute_tensor(full, group.mesh, layout, std::nullopt);
  }

  void forget_after(size_t n) {
    for_each_value(call(n), [&](size_t value) {
      if (last_use_[value] == n && !is_wanted_[value]) {
        made_[value] = at::Tensor();
      }
    });
  }

  static at::Tensor as_wanted(const at::Tensor& t, const SpecPtr& spec) {
    if (spec == nullptr) {
      return full_tensor(t);
    }
    if (!is_dtensor(t) || spec_of(t)->mesh() != spec->mesh()) {
      return distribute_tensor(
          full_tensor(t), spec->mesh(), spec->placements(), std::nullopt);
    }
    return DTensor(t).redistribute(spec->placements());
  }

  Tape& tape_;
  const std::vector<RequestedValue>& wanted_;
  std::vector<size_t> calls_;    // calls to play
  std::vector<at::Tensor> made_; // by value, until its last use
  std::vector<SpecPtr> layouts_; // by value, the preferred layout
  std::vector<size_t> last_use_; // by value, a call
  std::vector<bool> is_wanted_;  // by value
  UnionFind sets_;               // groups of values
  std::map<size_t, PlayGroup> groups_;
};

} // namespace

std::vector<at::Tensor>
play(Tape& tape, const std::vector<RequestedValue>& wanted, bool all_draws) {
  const c10::NoGradGuard no_grad;
  tape.close_all();
  return Player(tape, wanted).run(all_draws);
}

} // namespace dtensor::detail
