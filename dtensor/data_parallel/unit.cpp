// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/data_parallel/unit_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <dtensor/comm/observer.h>
#include <dtensor/error.h>
#include <dtensor/tensor/meta_impl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {
namespace {

using torch::autograd::variable_list;

// Node that receives the gradients of a unit's unsharded parameters. Ownership
// must not form a cycle: the Gathering holds the node weakly. The node's edges
// own the parameters, and the parameters own the unit.
struct UnitBackward final : Node {
  explicit UnitBackward(const UnitPtr& u) : unit(u) {}
  variable_list apply(variable_list&& gradients) override {
    const bool keeps_none = drop_unwanted(gradients);
    return unit.lock()->reduce(gradients, keeps_none);
  }
  // Drops gradients of parameters that this backward pass does not
  // compute (grad(), or backward() with `inputs`). Returns true in grad().
  bool drop_unwanted(variable_list& gradients) const {
    const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
    if (wanted == nullptr || wanted->empty()) {
      return false;
    }
    bool is_grad = false;
    for (size_t i = 0; i < gradients.size(); ++i) {
      const auto found = wanted->find(next_edge(i).function.get());
      if (found == wanted->end() || !found->second.should_execute()) {
        gradients[i] = at::Tensor();
      } else {
        is_grad |= found->second.captures_ != nullptr;
      }
    }
    return is_grad;
  }
  std::string name() const override {
    return "UnitBackward";
  }
  std::weak_ptr<Unit> unit;
};

// Hook in front of a node that reads unsharded parameters.
struct GatherBeforeBackward final : torch::autograd::FunctionPreHook {
  GatherBeforeBackward(UnitPtr u, std::shared_ptr<Gathering> g, size_t i)
      : unit(std::move(u)),
        schedule(unit->schedule()),
        gathering(std::move(g)),
        parameter(i) {}
  variable_list operator()(const variable_list& gradients) override {
    schedule->begin_backward(*unit, *gathering, parameter);
    return gradients;
  }
  UnitPtr unit;
  std::shared_ptr<Schedule> schedule;
  std::shared_ptr<Gathering> gathering;
  size_t parameter;
};

// Moves results of parameters that were frozen after an unreduced pass to their
// `.grad`, because autograd accumulates nothing in frozen parameters.
void take_frozen(
    const std::vector<at::Tensor>& parameters,
    variable_list& results) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (results[i].defined() && !parameters[i].requires_grad()) {
      auto& grad = parameters[i].mutable_grad();
      auto result = std::exchange(results[i], at::Tensor());
      grad = grad.defined() ? grad.add(result) : std::move(result);
    }
  }
}

} // namespace

Unit::Unit(
    const torch::nn::Module* module,
    const std::string& name,
    UnitGroups groups,
    const FullyShardOptions& options)
    : settings{options.reshard_after_forward},
      module_(module),
      name_(keep_module_name(name)),
      groups_(std::move(groups)),
      mixed_precision_(options.mp_policy),
      offloads_(options.offload_policy.has_value()),
      schedule_(std::make_shared<Schedule>()) {}

void Unit::nest_in(const UnitPtr& outer, const std::string& full_name) {
  if (outer_ == nullptr) {
    outer_ = outer;
    outer->inner_.push_back(weak_from_this());
  }
  name_ = keep_module_name(full_name);
  schedule_ = outer->schedule_;
}

bool Unit::is_inside(const Unit& other) const {
  for (const auto* unit = outer_.get(); unit != nullptr;
       unit = unit->outer_.get()) {
    if (unit == &other) {
      return true;
    }
  }
  return false;
}

bool Unit::reshards_after_forward() const {
  const auto& setting = settings.reshard_after_forward;
  return setting ? setting->reshards() : outer_ != nullptr;
}

bool Unit::is_gathered() const {
  return (current_ != nullptr && current_->is_here()) || ahead_ != nullptr;
}

at::Tensor Unit::take_unsharded(size_t parameter) {
  schedule_->begin_forward(*this, parameter);
  ++users_;
  return current_->unsharded(
      parameter, parameters_[parameter].unsharded, [this] {
        return make_node();
      });
}

std::shared_ptr<void> Unit::open() {
  schedule_->begin_forward(*this, std::nullopt);
  ++open_;
  return {nullptr, [unit = shared_from_this()](void*) {
            --unit->open_;
            unit->schedule_->end_forward(*unit);
          }};
}

std::shared_ptr<void> Unit::open_nested() {
  ++open_;
  return {nullptr, [unit = shared_from_this()](void*) { --unit->open_; }};
}

// Hooks each node of the results, so that the parameters are gathered again
// before the backward pass reads what the node has saved.
void Unit::give_back(size_t parameter, at::TensorList results) {
  --users_;
  const Node* hooked = nullptr;
  for (const auto& result : results) {
    current_->keep_memory_if_shared(result);
    const auto& node = result.grad_fn();
    if (node != nullptr && node.get() != hooked) {
      hooked = node.get();
      node->add_pre_hook(std::make_unique<GatherBeforeBackward>(
          shared_from_this(), current_, parameter));
      awaits_gradients_ |= current_->learns();
    }
  }
}

void Unit::gather_ahead() {
  if (parameters_.empty() || ahead_ != nullptr || kept_.defined() ||
      (current_ != nullptr && current_->is_here())) {
    return;
  }
  const c10::InferenceMode normal(false);
  const c10::NoGradGuard no_grad;
  const ModuleScope scope(name_);
  ahead_of_ = states();
  note_dtypes();
  ahead_ = groups_.shard->all_gather_async(
      all_gather_input(), 0, layout_->rank_sizes());
  schedule_->note_gathered(*this);
}

// Fills `gathering` from the current parameters.
void Unit::bring(Gathering& gathering) {
  const c10::InferenceMode normal(false);
  const c10::NoGradGuard no_grad;
  const ModuleScope scope(name_);
  if (const auto kept = std::exchange(kept_, at::Tensor()); kept.defined()) {
    gathering.fill(groups_.reshard_group->all_gather(kept, 0));
  } else if (const auto ahead = std::exchange(ahead_, nullptr);
             ahead != nullptr && ahead_of_ == gathering.of()) {
    gathering.fill(*layout_, ahead->wait());
  } else {
    gathering.fill(
        *layout_,
        groups_.shard->all_gather(
            all_gather_input(), 0, layout_->rank_sizes()));
  }
  schedule_->note_gathered(*this);
}

// Reuses the current gathering if no parameter has changed. Otherwise makes a
// new gathering, because graphs may still own tensors of the old one.
void Unit::gather() {
  if (parameters_.empty()) {
    return;
  }
  auto now = states();
  if (current_ == nullptr || current_->of() != now) {
    kept_ = at::Tensor();
    note_dtypes();
    const auto dtypes = unsharded_dtypes();
    if (current_.use_count() == 1 && current_->can_restart(dtypes)) {
      current_->restart(std::move(now));
    } else {
      current_ = std::make_shared<Gathering>(
          *layout_, dtypes, device(), std::move(now));
      current_->set_keeps_memory(keeps_unsharded_storage_);
    }
  }
  if (!current_->is_here()) {
    bring(*current_);
  }
  gathered_changes_ = changes_;
}

// Compares the state of `parameter` only. For the other parameters, compares
// `changes_`, which counts writes by operators and replacements of data.
void Unit::gather_for_parameter(size_t parameter) {
  const bool is_here = current_ != nullptr && current_->is_here() &&
      gathered_changes_ == changes_ &&
      current_->of()[parameter] == state(parameter);
  if (!is_here) {
    gather();
  }
}

// Makes one node for all parameters, so that a single call gets all their
// gradients and reduces them together.
NodePtr Unit::make_node() {
  auto node = detail::make_node<UnitBackward>(shared_from_this());
  torch::autograd::edge_list edges;
  size_t i = 0;
  for (const auto& parameter : parameters()) {
    edges.push_back(
        parameter.requires_grad()
            ? torch::autograd::impl::gradient_edge(parameter)
            : torch::autograd::Edge());
    node->add_input_metadata(current_->bare(i, parameters_[i].unsharded));
    ++i;
  }
  node->set_next_edges(std::move(edges));
  return node;
}

void Unit::refill(Gathering& gathering, size_t parameter) {
  check_unchanged(gathering, parameter);
  if (c10::GradMode::is_enabled()) {
    gathering.keep_memory(); // a graph of gradients reads them later
  }
  if (!gathering.is_here()) {
    bring(gathering);
  }
  awaits_gradients_ |= gathering.learns();
}

// Frees the unsharded parameters unless an operator uses them. If the backward
// pass gathers among fewer ranks, keeps this rank's chunk for this all-gather.
void Unit::release(bool after_forward) {
  ahead_ = nullptr;
  if (users_ > 0 || current_ == nullptr || !current_->is_here()) {
    return;
  }
  if (after_forward && groups_.reshard_group != nullptr &&
      settings.reshard_after_forward &&
      settings.reshard_after_forward->ranks() > 0) {
    const auto piece = chunk(
        layout_->unsharded_size(),
        groups_.reshard_group->size(),
        groups_.reshard_group->rank());
    kept_ = current_->elements().narrow(0, piece.begin, piece.size()).clone();
  }
  if (!current_->release()) {
    current_ = nullptr; // its other users keep it alive
    kept_ = at::Tensor();
  }
}

void Unit::check_reduces(const variable_list& gradients, bool keeps_none)
    const {
  const bool differentiates = c10::GradMode::is_enabled() &&
      std::ranges::any_of(gradients, [](const auto& g) {
                                return g.defined() && g.requires_grad();
                              });
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      !differentiates,
      "[{}] gradients of unit \"{}\" cannot be differentiated again "
      "(create_graph). Use parallelize_module or replicated parameters for "
      "second derivatives.",
      kFullyShard,
      name_);
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      !keeps_none || !reduction_->adds_up(),
      "[{}] torch::autograd::grad cannot return gradients of unit \"{}\", "
      "which accumulate until they are reduced over ranks "
      "(set_requires_gradient_sync, set_requires_all_reduce). Call backward() "
      "until then, or request gradients of inputs only.",
      kFullyShard,
      name_);
}

variable_list Unit::reduce(const variable_list& gradients, bool keeps_none) {
  schedule_->end_backward();
  awaits_gradients_ = false;
  check_reduces(gradients, keeps_none);
  return reduced(gradients, settings.reshards_after_backward);
}

variable_list Unit::reduced(const variable_list& gradients, bool releases) {
  const c10::NoGradGuard no_grad;
  const ModuleScope scope(name_, /*backward=*/true);
  schedule_->wait_for_reduction();
  if (releases) {
    release(/*after_forward=*/false);
  }
  auto [results, under_way] =
      reduction_->run(reduced_parameters(), gradients, reduce_dtype());
  schedule_->follow(std::move(under_way));
  take_frozen(parameters(), results);
  return results;
}

void Unit::reduce_unreduced() {
  if (reduction_ == std::nullopt || !reduction_->has_unreduced()) {
    return;
  }
  auto results = reduced(variable_list(parameters_.size()), /*releases=*/false);
  // The nodes that accumulate gradients of backward() take the results.
  torch::autograd::edge_list edges;
  variable_list gradients;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].defined()) {
      edges.push_back(torch::autograd::impl::gradient_edge(parameter(i)));
      gradients.push_back(std::move(results[i]));
    }
  }
  if (!edges.empty()) {
    torch::autograd::Engine::get_default_engine().execute(
        edges,
        gradients,
        /*keep_graph=*/false,
        /*create_graph=*/false,
        /*accumulate_grad=*/true);
  }
}

void Unit::set_keep_unsharded_storage(bool keeps) {
  keeps_unsharded_storage_ = keeps;
  if (current_ != nullptr) {
    current_->set_keeps_memory(keeps);
  }
}

} // namespace dtensor::detail
