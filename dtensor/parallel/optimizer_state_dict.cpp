// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/error.h>
#include <dtensor/parallel/optimizer_fields_impl.h>
#include <dtensor/parallel/state_values_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace dtensor {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;

using detail::KnownOptimizer;

using Names = std::unordered_map<const void*, std::string>;

Names names_of(const torch::nn::Module& module) {
  Names names;
  for (const auto& item : module.named_parameters()) {
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  return names;
}

const std::string&
name_of(const Names& names, const at::Tensor& parameter, const char* where) {
  const auto found = names.find(parameter.unsafeGetTensorImpl());
  DTENSOR_CHECK_VALUE(
      found != names.end(),
      where,
      "the optimizer has a parameter, ",
      detail::state_text(parameter),
      ", that is none of the module's. Pass the module that it was made for.");
  return found->second;
}

// Calls fn(name, parameter, group) for each parameter, in the optimizer's
// order.
template <class AnOptimizer, class Fn>
void for_each_parameter(
    const torch::nn::Module& module,
    AnOptimizer& optimizer,
    const char* where,
    const Fn& fn) {
  const auto names = names_of(module);
  for (auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      fn(name_of(names, parameter, where), parameter, group);
    }
  }
}

std::string lr_key(const std::string& name) {
  return "param_groups." + name + ".lr";
}
std::string state_key(const std::string& name, const char* field) {
  return "state." + name + "." + field;
}

/// The values of one parameter in a dictionary, and what of them is wrong.
class Reader {
 public:
  Reader(const KnownOptimizer& kind, const StateDict& state, bool takes)
      : kind_(kind),
        state_(state),
        takes_(takes) {}

  /// Null if there is nothing of this parameter.
  std::unique_ptr<OptimizerParamState> read(
      const std::string& name,
      const at::Tensor& parameter) {
    auto made = kind_.make();
    const auto fields = kind_.fields(*made);
    bool is_there = false;
    for (const auto& [field, value] : fields.tensors) {
      if (const auto* found = take(state_key(name, field))) {
        is_there = true;
        if (detail::fits_state(parameter, *found)) {
          const auto placed = detail::placed_like(parameter, *found);
          *value = takes_ ? placed : placed.clone();
        } else {
          problems_.has_other_shape(state_key(name, field), parameter, *found);
        }
      }
    }
    for (const auto& [field, value] : fields.numbers) {
      if (const auto* found = take(state_key(name, field))) {
        is_there = true;
        *value = found->item<int64_t>();
      }
    }
    return is_there ? std::move(made) : nullptr;
  }

  const at::Tensor* take(const std::string& key) {
    const auto* found = state_.find(key);
    if (found != nullptr) {
      known_.insert(key);
    }
    return found;
  }

  void check(bool strict, const char* where) {
    for (const auto& item : state_) {
      if (strict && known_.count(item.key()) == 0) {
        problems_.is_unexpected(item.key());
      }
    }
    problems_.check(where);
  }

 private:
  const KnownOptimizer& kind_;
  const StateDict& state_;
  bool takes_; // the tensors themselves, not copies
  std::unordered_set<std::string> known_;
  detail::StateProblems problems_;
};

} // namespace

StateDict get_optimizer_state_dict(
    const torch::nn::Module& module,
    const Optimizer& optimizer,
    const StateDictOptions& options) {
  constexpr const char* kWhere = "get_optimizer_state_dict";
  detail::check_options(options, kWhere);
  const auto kind = detail::known_optimizer(optimizer, kWhere);
  StateDict result;
  const auto add = [&](const std::string& key, const at::Tensor& value) {
    auto wanted = detail::state_value(value, options);
    if (detail::gets_state(options)) {
      result.insert(key, std::move(wanted));
    }
  };
  const auto add_parameter = [&](const std::string& name,
                                 const at::Tensor& parameter,
                                 const auto& group) {
    add(lr_key(name), at::scalar_tensor(group.options().get_lr(), at::kDouble));
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) {
      return;
    }
    const auto fields = kind->fields(*found->second);
    for (const auto& [field, value] : fields.tensors) {
      if (value->defined()) {
        add(state_key(name, field), *value);
      }
    }
    for (const auto& [field, value] : fields.numbers) {
      add(state_key(name, field), at::scalar_tensor(*value, at::kLong));
    }
  };
  for_each_parameter(module, optimizer, kWhere, add_parameter);
  return result;
}

namespace {

void set_optimizer_state(
    const torch::nn::Module& module,
    Optimizer& optimizer,
    const StateDict& given,
    const StateDictOptions& options,
    bool takes) {
  constexpr const char* kWhere = "set_optimizer_state_dict";
  detail::check_options(options, kWhere);
  const c10::NoGradGuard no_grad;
  const auto kind = detail::known_optimizer(optimizer, kWhere);
  const auto state =
      options.broadcast_from_rank0 ? detail::broadcast_state(given) : given;
  Reader reader(*kind, state, takes);
  std::vector<std::pair<void*, std::unique_ptr<OptimizerParamState>>> read;
  std::vector<std::pair<OptimizerParamGroup*, double>> rates;
  const auto read_parameter = [&](const std::string& name,
                                  const at::Tensor& parameter,
                                  OptimizerParamGroup& group) {
    if (const auto* rate = reader.take(lr_key(name))) {
      rates.emplace_back(&group, rate->item<double>());
    }
    read.emplace_back(
        parameter.unsafeGetTensorImpl(), reader.read(name, parameter));
  };
  for_each_parameter(module, optimizer, kWhere, read_parameter);
  reader.check(options.strict, kWhere); // before anything is set
  for (auto& [parameter, made] : read) {
    if (made != nullptr) {
      optimizer.state()[parameter] = std::move(made);
    } else {
      optimizer.state().erase(parameter);
    }
  }
  for (const auto& [group, rate] : rates) {
    group->options().set_lr(rate);
  }
}

} // namespace

void set_optimizer_state_dict(
    const torch::nn::Module& module,
    Optimizer& optimizer,
    const StateDict& state,
    const StateDictOptions& options) {
  set_optimizer_state(module, optimizer, state, options, /*takes=*/false);
}

void detail::take_optimizer_state_dict(
    const torch::nn::Module& module,
    Optimizer& optimizer,
    const StateDict& state,
    const StateDictOptions& options) {
  set_optimizer_state(module, optimizer, state, options, /*takes=*/true);
}

} // namespace dtensor
