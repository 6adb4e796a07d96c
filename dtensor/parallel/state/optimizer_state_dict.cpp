// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/state_dict.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/StringUtil.h>
#include <dtensor/error.h>
#include <dtensor/parallel/state/module_members_impl.h>
#include <dtensor/parallel/state/optimizer_fields_impl.h>
#include <dtensor/parallel/state/state_values_impl.h>
#include <dtensor/tensor/dtensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace dtensor {
namespace {

using detail::KnownOptimizer;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;
std::string option_key(const std::string& name, const char* option) {
  return "param_groups." + name + "." + option;
}
std::string state_key(const std::string& name, const char* field) {
  return "state." + name + "." + field;
}

std::string
list_key(const std::string& name, const char* field, size_t number) {
  return state_key(name, field) + "." + std::to_string(number);
}

int64_t elements_of(const Optimizer& optimizer) {
  int64_t elements = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      elements += parameter.numel();
    }
  }
  return elements;
}

std::vector<double> numbers_in(const at::Tensor& tensor) {
  const auto plain = full_tensor(tensor).to(at::kCPU, at::kDouble).contiguous();
  const auto* const first = plain.const_data_ptr<double>();
  return {first, first + plain.numel()};
}

/// Option of a group, as read for the group's first parameter.
struct ReadOption {
  detail::OptionPlace place;
  std::string key;
  std::vector<double> numbers;
};

/// Reads the values of parameters from a dictionary, and collects problems.
class Reader {
 public:
  Reader(
      const KnownOptimizer& kind,
      const StateDict& state,
      bool takes,
      bool strict)
      : kind_(kind),
        state_(state),
        takes_(takes),
        strict_(strict) {}

  /// Returns null if the dictionary has no state of this parameter.
  std::unique_ptr<OptimizerParamState> read(
      const std::string& name,
      const at::Tensor& parameter) {
    auto made = kind_.make();
    const auto fields = kind_.fields(*made);
    bool is_there = false;
    for (const auto& [field, value] : fields.tensors) {
      if (const auto* found = take_tensor(state_key(name, field))) {
        is_there = true;
        if (detail::fits_state(parameter, *found)) {
          const auto placed = detail::redistribute_like(parameter, *found);
          *value = takes_ ? placed : placed.clone();
        } else {
          problems_.has_other_shape(state_key(name, field), parameter, *found);
        }
      }
    }
    is_there |= read_numbers(name, fields);
    if (is_there) {
      check_complete(name, fields);
    }
    return is_there ? std::move(made) : nullptr;
  }

  /// Reads the state of an optimizer that treats all parameters, with
  /// `elements` elements in total, as one vector. `parameter` is the first
  /// parameter.
  std::unique_ptr<OptimizerParamState> read_vectors(
      const std::string& name,
      const at::Tensor& parameter,
      int64_t elements) {
    auto made = kind_.make();
    const auto fields = kind_.fields(*made);
    bool is_there = read_numbers(name, fields);
    for (const auto& [field, value] : fields.tensors) {
      const auto key = state_key(name, field);
      if (const auto* found = take_tensor(key)) {
        is_there = true;
        *value = read_vector(key, *found, parameter, elements);
      }
    }
    read_lists(name, fields, parameter, elements);
    if (is_there) {
      check_complete(name, fields);
    }
    return is_there ? std::move(made) : nullptr;
  }

  /// Reads options of the parameter's group, which must be equal for all its
  /// parameters.
  void read_options(const std::string& name, OptimizerParamGroup& group) {
    for (const auto& [option, place] : kind_.options(group.options())) {
      const auto key = option_key(name, option);
      const auto* found = take_tensor(key);
      if (found == nullptr) {
        continue;
      }
      const auto own = detail::option_tensor(place);
      if (!found->defined() || found->sizes() != own.sizes()) {
        problems_.has_other_shape(key, own, *found);
        continue;
      }
      auto numbers = numbers_in(*found);
      const auto& first =
          options_
              .try_emplace({&group, option}, ReadOption{place, key, numbers})
              .first->second;
      if (first.numbers != numbers) {
        differing_.push_back(detail::format_text(
            "{} is {}, {} is {}",
            first.key,
            c10::Join(", ", first.numbers),
            key,
            c10::Join(", ", numbers)));
      }
    }
  }

  std::vector<ReadOption> take_options() {
    std::vector<ReadOption> all;
    for (auto& item : options_) {
      all.push_back(std::move(item.second));
    }
    return all;
  }

  void check(const char* where) {
    for (const auto& item : state_) {
      if (strict_ && known_.count(item.key()) == 0) {
        problems_.is_unexpected(item.key());
      }
    }
    problems_.check(where);
    DTENSOR_CHECK_VALUE(
        differing_.empty(),
        "[{}] parameters of one group have different options: {}. Put them "
        "into separate groups, as in the optimizer that saved the state.",
        where,
        c10::Join("; ", differing_));
  }

 private:
  // Reports required fields of the parameter's state that are missing.
  void check_complete(
      const std::string& name,
      const detail::StateFields& fields) {
    const auto check = [&](const char* field) {
      const auto key = state_key(name, field);
      if (strict_ && !detail::is_optional_state(field) &&
          known_.count(key) == 0) {
        problems_.is_missing(key);
      }
    };
    for (const auto& item : fields.tensors) {
      check(item.first);
    }
    for (const auto& item : fields.numbers) {
      check(item.first);
    }
  }

  bool read_numbers(
      const std::string& name,
      const detail::StateFields& fields) {
    bool is_there = false;
    for (const auto& [field, value] : fields.numbers) {
      const auto key = state_key(name, field);
      const auto* found = take_tensor(key);
      if (found == nullptr) {
        continue;
      }
      is_there = true;
      if (!found->defined() || found->numel() != 1) {
        problems_.has_other_shape(key, at::scalar_tensor(0, at::kLong), *found);
      } else if (auto* const* integer = std::get_if<int64_t*>(&value)) {
        **integer = found->item<int64_t>();
      } else {
        *std::get<double*>(value) = found->item<double>();
      }
    }
    return is_there;
  }

  // Reads a vector over all parameters, or a 0-dim tensor.
  at::Tensor read_vector(
      const std::string& key,
      const at::Tensor& found,
      const at::Tensor& parameter,
      int64_t elements) {
    const bool fits = found.defined() &&
        (found.dim() == 0 || (found.dim() == 1 && found.numel() == elements));
    if (!fits) {
      problems_.has_other_shape(
          key,
          at::empty({elements}, at::dtype(parameter.dtype()).device(at::kMeta)),
          found);
      return {};
    }
    const auto placed = detail::replicate_like(parameter, found);
    return takes_ ? placed : placed.clone();
  }

  // Reads list items until an index that no list has.
  void read_lists(
      const std::string& name,
      const detail::StateFields& fields,
      const at::Tensor& parameter,
      int64_t elements) {
    for (size_t i = 0;; ++i) {
      std::vector<std::string> missing;
      for (const auto& [field, list] : fields.lists) {
        const auto key = list_key(name, field, i);
        if (const auto* found = take_tensor(key)) {
          list->push_back(read_vector(key, *found, parameter, elements));
        } else {
          missing.push_back(key);
        }
      }
      if (missing.size() == fields.lists.size()) {
        return;
      }
      for (const auto& key : missing) {
        problems_.is_missing(key);
      }
    }
  }

  const at::Tensor* take_tensor(const std::string& key) {
    const auto* found = state_.find(key);
    if (found != nullptr) {
      known_.insert(key);
    }
    return found;
  }

  const KnownOptimizer& kind_;
  const StateDict& state_;
  bool takes_;  // keep tensors instead of copies
  bool strict_; // require complete state, and no unknown names
  std::unordered_set<std::string> known_;
  std::map<std::pair<const void*, std::string_view>, ReadOption> options_;
  std::vector<std::string> differing_;
  detail::StateProblems problems_;
};

// Calls `add(key, value)` for each field of the state of parameter `name`.
template <typename Add>
void add_state(
    const std::string& name,
    const detail::StateFields& fields,
    const Add& add) {
  for (const auto& [field, value] : fields.tensors) {
    if (value->defined()) {
      add(state_key(name, field), *value);
    }
  }
  for (const auto& [field, value] : fields.numbers) {
    add(state_key(name, field), detail::number_tensor(value));
  }
  for (const auto& [field, list] : fields.lists) {
    for (size_t i = 0; i < list->size(); ++i) {
      add(list_key(name, field, i), (*list)[i]);
    }
  }
}

// New state of each parameter; null: no state.
using ReadStates =
    std::vector<std::pair<void*, std::unique_ptr<OptimizerParamState>>>;

void set_states(Optimizer& optimizer, ReadStates& read) {
  for (auto& [parameter, made] : read) {
    optimizer.state().erase(parameter);
    if (made != nullptr) {
      optimizer.state().emplace(parameter, std::move(made));
    }
  }
}

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
                                 const OptimizerParamGroup& group) {
    // The const_cast is safe, because options are only read through the
    // pointers.
    auto& own = const_cast<OptimizerParamGroup&>(group).options();
    for (const auto& [option, place] : kind->options(own)) {
      add(option_key(name, option), detail::option_tensor(place));
    }
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found != optimizer.state().end()) {
      add_state(name, kind->fields(*found->second), add);
    }
  };
  detail::for_each_parameter(module, optimizer, kWhere, add_parameter);
  return result;
}

std::function<void()> detail::prepare_optimizer_state_dict(
    const torch::nn::Module& module,
    Optimizer& optimizer,
    const StateDict& given,
    const StateDictOptions& options,
    bool takes) {
  constexpr const char* kWhere = "set_optimizer_state_dict";
  detail::check_options(options, kWhere);
  const c10::NoGradGuard no_grad;
  const auto kind = detail::known_optimizer(optimizer, kWhere);
  const auto state = options.broadcast_from_rank0
      ? detail::broadcast_state(given, kWhere)
      : given;
  Reader reader(*kind, state, takes, options.strict);
  // std::function must be copyable
  const auto read = std::make_shared<ReadStates>();
  const auto read_parameter = [&](const std::string& name,
                                  const at::Tensor& parameter,
                                  OptimizerParamGroup& group) {
    reader.read_options(name, group);
    auto made = !kind->flattens_all_parameters() ? reader.read(name, parameter)
        : read->empty()
        ? reader.read_vectors(name, parameter, elements_of(optimizer))
        : nullptr;
    read->emplace_back(parameter.unsafeGetTensorImpl(), std::move(made));
  };
  detail::for_each_parameter(module, optimizer, kWhere, read_parameter);
  reader.check(kWhere);
  return [&optimizer, read, read_options = reader.take_options()] {
    set_states(optimizer, *read);
    for (const auto& option : read_options) {
      detail::set_option(option.place, option.numbers);
    }
  };
}

void set_optimizer_state_dict(
    const torch::nn::Module& module,
    Optimizer& optimizer,
    const StateDict& state,
    const StateDictOptions& options) {
  detail::prepare_optimizer_state_dict(
      module, optimizer, state, options, /*takes=*/false)();
}

} // namespace dtensor
