// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/module_tracker_impl.h>

#include <ATen/SequenceNumber.h>
#include <dtensor/comm/observer.h>
#include <dtensor/debug/operator_observer_impl.h>
#include <dtensor/ops/boundary/boundaries_impl.h>
#include <dtensor/parallel/hook_list.h>
#include <dtensor/parallel/plan/module_names_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/torch_nodes_impl.h>
#include <torch/nn/module.h>

#include <string>
#include <string_view>

namespace dtensor::detail {
namespace {

// Maximum number of operators with tracked nodes. Older graphs are rare.
constexpr size_t kMostMade = 1 << 16;

// True for operators that write in place: optimizer updates of parameters
// belong to no module.
bool writes(std::string_view name) {
  return name.ends_with('_') || name.find("_foreach_") != name.npos ||
      name.find("_fused_") != name.npos;
}

// Casts away const: modules passed to the tracker are not const.
ModuleHooks* hooks_of(const torch::nn::Module* module) {
  return dynamic_cast<ModuleHooks*>(const_cast<torch::nn::Module*>(module));
}

} // namespace

ModuleTracker::ModuleTracker(torch::nn::Module* model) {
  if (model == nullptr) {
    return;
  }
  for (const auto& info : modules_of(*model)) {
    const auto name = keep_module_name(info.name);
    for (const auto& [_, parameter] : info.parameters) {
      parameters_.emplace(parameter.unsafeGetTensorImpl(), name);
    }
    auto* const hooks = hooks_of(info.module);
    if (hooks != nullptr && hooks->module_name().empty()) {
      hooks->set_module_name(name);
      named_.push_back(info.module);
    }
  }
}

ModuleTracker::~ModuleTracker() {
  for (auto* const module : named_) {
    hooks_of(module)->set_module_name({});
  }
}

ModuleTracker::Cause ModuleTracker::begin(const at::RecordFunction& call) {
  cause_ = now();
  if (!cause_.backward) {
    if (const auto owner = reads_parameter_of(call); !owner.empty()) {
      cause_.module = owner;
    }
  }
  first_ = at::sequence_number::peek();
  return cause_;
}

void ModuleTracker::end() {
  const auto end = at::sequence_number::peek();
  if (cause_.backward || cause_.module.empty() || end == first_) {
    return;
  }
  made_[{at::RecordFunction::currentThreadId(), first_}] = {end, cause_.module};
  if (made_.size() > kMostMade) {
    made_.erase(made_.begin());
  }
}

ModuleTracker::Cause ModuleTracker::now() const {
  const auto scope = ModuleScope::current();
  if (torch::autograd::get_current_node() == nullptr) {
    return {scope, scope == "gradients"};
  }
  return {scope.empty() ? maker_of_current_node() : scope, true};
}

// Returns the owner of the parameters among the operands; empty if there are
// several owners.
std::string_view ModuleTracker::reads_parameter_of(
    const at::RecordFunction& call) const {
  const std::string_view name = call.name();
  if (writes(name)) {
    return {};
  }
  const bool looks_up = name.find("embedding") != name.npos;
  std::string_view found;
  bool differ = false;
  for (const auto& input : inputs_of(call)) {
    if (input.isTensor() && input.toTensor().defined()) {
      const auto owner = owner_of(input.toTensor(), looks_up);
      differ |= !owner.empty() && !found.empty() && owner != found;
      found = owner.empty() ? found : owner;
    }
  }
  return differ ? std::string_view() : found;
}

std::string_view ModuleTracker::owner_of(const at::Tensor& t, bool looks_up)
    const {
  if (is_dtensor(t)) {
    if (const auto& boundaries = meta_of(t).boundaries) {
      const auto kind =
          looks_up ? BoundaryKind::kEmbedding : BoundaryKind::kLinear;
      return boundaries->get_any(kind)->module_name();
    }
  }
  const auto found = parameters_.find(t.unsafeGetTensorImpl());
  return found == parameters_.end() ? std::string_view() : found->second;
}

std::string_view ModuleTracker::maker_of_current_node() const {
  const auto node = torch::autograd::get_current_node();
  auto after = made_.upper_bound({node->thread_id(), node->sequence_nr()});
  if (after == made_.begin()) {
    return {};
  }
  const auto& [first, made] = *--after;
  const bool is_of_it =
      first.first == node->thread_id() && node->sequence_nr() < made.end;
  return is_of_it ? made.module : std::string_view();
}

namespace {

NamedTensors defined_in(
    const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  NamedTensors named;
  for (const auto& item : tensors) {
    if (item.value().defined()) {
      named.emplace_back(item.key(), item.value());
    }
  }
  return named;
}

// Returns the type of a module, without the DTENSOR_MODULE wrapper.
std::string type_of(const torch::nn::Module& module) {
  constexpr std::string_view kHooked = "dtensor::Hooked<";
  const auto& name = module.name();
  return name.starts_with(kHooked) && name.ends_with('>')
      ? name.substr(kHooked.size(), name.size() - kHooked.size() - 1)
      : name;
}

void add_modules(
    std::vector<ModuleInfo>& modules,
    const torch::nn::Module& module,
    const std::string& name,
    size_t depth) {
  modules.push_back(
      {name,
       type_of(module),
       depth,
       defined_in(module.named_parameters(/*recurse=*/false)),
       defined_in(module.named_buffers(/*recurse=*/false)),
       &module});
  for (const auto& child : module.named_children()) {
    if (child.value() != nullptr) {
      add_modules(
          modules, *child.value(), full_name(name, child.key()), depth + 1);
    }
  }
}

} // namespace

std::vector<ModuleInfo> modules_of(const torch::nn::Module& model) {
  std::vector<ModuleInfo> modules;
  add_modules(modules, model, "", 0);
  return modules;
}

} // namespace dtensor::detail
