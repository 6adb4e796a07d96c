// SPDX-License-Identifier: BSD-3-Clause
// The modules of a program: styles and optimizers take them for the model.
#include <dtensor/program/program_state_impl.h>

#include <dtensor/error.h>

#include <ATen/ops/empty.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <map>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

using torch::nn::Module;

enum class Role { kNone, kLinear, kEmbedding, kLayerNorm };

struct Tensors {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  Role role = Role::kNone;
};

std::pair<std::string, std::string> split_name(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos
      ? std::pair{std::string(), name}
      : std::pair{name.substr(0, dot), name.substr(dot + 1)};
}

// Which argument of the operator is the weight of such a module.
std::pair<Role, size_t> role_in(const std::string& target) {
  if (target == "aten::linear") {
    return {Role::kLinear, 1};
  }
  if (target == "aten::embedding") {
    return {Role::kEmbedding, 0};
  }
  if (target == "aten::layer_norm") {
    return {Role::kLayerNorm, 2};
  }
  return {Role::kNone, 0};
}

struct Use {
  Slot slot = 0;
  Role role = Role::kNone;
  std::string module; // that made the call
};

// What values are used for as weights.
std::vector<Use> uses_of(const Graph& graph) {
  std::vector<Use> uses;
  for (const auto& node : graph.nodes) {
    const auto [role, index] = role_in(node.target);
    if (role == Role::kNone || index >= node.args.size()) {
      continue;
    }
    if (const auto* value = std::get_if<ValueOperand>(&node.args[index])) {
      uses.push_back({value->slot, role, node.module});
    }
  }
  return uses;
}

// A module of LibTorch without values of its own, which holds these tensors. It
// is made with nothing in it, so that it draws no random numbers.
template <class Impl>
class Holding final : public Impl {
 public:
  template <class Options>
  Holding(
      const Options& empty,
      const Options& held_options,
      const at::Tensor& held_weight,
      const at::Tensor& held_bias)
      : Impl(empty) {
    this->options = held_options;
    hold("weight", this->weight, held_weight);
    if constexpr (requires { this->bias; }) {
      hold("bias", this->bias, held_bias);
    }
  }

 private:
  void hold(const char* name, at::Tensor& member, const at::Tensor& t) {
    member = t;
    if (this->parameters_.contains(name)) {
      this->parameters_[name] = t;
    }
  }
};

std::shared_ptr<Module> linear_of(
    const at::Tensor& weight,
    const at::Tensor& bias) {
  const auto options = [&](int64_t in, int64_t out) {
    return torch::nn::LinearOptions(in, out).bias(bias.defined());
  };
  return std::make_shared<Holding<torch::nn::LinearImpl>>(
      options(1, 0), options(weight.size(1), weight.size(0)), weight, bias);
}

std::shared_ptr<Module> embedding_of(const at::Tensor& weight) {
  using Options = torch::nn::EmbeddingOptions;
  return std::make_shared<Holding<torch::nn::EmbeddingImpl>>(
      Options(0, 1),
      Options(weight.size(0), weight.size(1)),
      weight,
      at::Tensor());
}

std::shared_ptr<Module> layer_norm_of(
    const at::Tensor& weight,
    const at::Tensor& bias) {
  using Options = torch::nn::LayerNormOptions;
  return std::make_shared<Holding<torch::nn::LayerNormImpl>>(
      Options({0}), Options(weight.sizes().vec()), weight, bias);
}

class Tree {
 public:
  Tree(const Graph& graph, const WeightFile& file)
      : graph_(graph),
        file_(file),
        uses_(uses_of(graph)) {}

  std::shared_ptr<Module> make(std::vector<at::Tensor>& inputs) {
    inputs.assign(graph_.inputs.size(), at::Tensor());
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      const auto& input = graph_.inputs[i];
      if (input.kind == InputKind::kParameter ||
          input.kind == InputKind::kBuffer) {
        inputs[i] = tensor_of(input);
        place(input, inputs[i]);
      }
    }
    auto root = std::make_shared<Module>("Program");
    modules_[""] = root;
    for (const auto& path : paths_) {
      module_of(path);
    }
    for (const auto& [name, t] : tensors_[""].parameters) {
      root->register_parameter(name, t, t.requires_grad());
    }
    for (const auto& [name, t] : tensors_[""].buffers) {
      root->register_buffer(name, t);
    }
    return root;
  }

 private:
  at::Tensor tensor_of(const GraphInput& input) {
    const auto* weight = file_.find(input.name);
    DTENSOR_CHECK_VALUE(
        weight != nullptr,
        "load_program",
        file_.path(),
        " has no values of ",
        input.name,
        ". Export the program again.");
    for (const auto& [name, tied] : made_) {
      if (file_.is_same(name, input.name)) {
        return tied;
      }
    }
    auto t = at::empty(
        weight->sizes, at::TensorOptions(weight->dtype).device(c10::kMeta));
    t.set_requires_grad(
        input.kind == InputKind::kParameter && input.requires_grad);
    made_.emplace_back(input.name, t);
    return t;
  }

  void place(const GraphInput& input, const at::Tensor& t) {
    const auto [path, name] = split_name(input.name);
    if (tensors_.count(path) == 0) {
      paths_.push_back(path);
    }
    auto& tensors = tensors_[path];
    if (input.kind == InputKind::kBuffer) {
      tensors.buffers.emplace_back(name, t);
      return;
    }
    tensors.parameters.emplace_back(name, t);
    if (name != "weight") {
      return;
    }
    tensors.role = role_of(input, path);
  }

  // Of tied weights the graph uses one for all of them: which of these uses is
  // this module's, its name at the call tells.
  Role role_of(const GraphInput& input, const std::string& path) const {
    Role found = Role::kNone;
    for (const auto& use : uses_) {
      if (use.module == path) {
        return use.role;
      }
      if (use.slot == input.slot && found == Role::kNone) {
        found = use.role;
      }
    }
    return found;
  }

  // Made with all above it.
  std::shared_ptr<Module> module_of(const std::string& path) {
    if (const auto known = modules_.find(path); known != modules_.end()) {
      return known->second;
    }
    const auto [parent, name] = split_name(path);
    const auto above = module_of(parent);
    const auto found = tensors_.find(path);
    auto module = found == tensors_.end() ? std::make_shared<Module>(name)
                                          : made_of(found->second, name);
    above->register_module(name, module);
    modules_[path] = module;
    return module;
  }

  static bool is_only_weight_and_bias(const Tensors& tensors) {
    for (const auto& [name, t] : tensors.parameters) {
      if (name != "weight" && name != "bias") {
        return false;
      }
    }
    return tensors.buffers.empty();
  }

  static at::Tensor named(const Tensors& tensors, std::string_view name) {
    for (const auto& [other, t] : tensors.parameters) {
      if (other == name) {
        return t;
      }
    }
    return {};
  }

  static std::shared_ptr<Module> made_of(
      const Tensors& tensors,
      const std::string& name) {
    const auto weight = named(tensors, "weight");
    const auto bias = named(tensors, "bias");
    if (is_only_weight_and_bias(tensors) && weight.defined()) {
      if (tensors.role == Role::kLinear && weight.dim() == 2) {
        return linear_of(weight, bias);
      }
      if (tensors.role == Role::kEmbedding && !bias.defined()) {
        return embedding_of(weight);
      }
      if (tensors.role == Role::kLayerNorm && bias.defined()) {
        return layer_norm_of(weight, bias);
      }
    }
    auto module = std::make_shared<Module>(name);
    for (const auto& [key, t] : tensors.parameters) {
      module->register_parameter(key, t, t.requires_grad());
    }
    for (const auto& [key, t] : tensors.buffers) {
      module->register_buffer(key, t);
    }
    return module;
  }

  const Graph& graph_;
  const WeightFile& file_;
  std::vector<Use> uses_;
  std::vector<std::pair<std::string, at::Tensor>> made_;
  std::vector<std::string> paths_;         // of modules, in the program's order
  std::map<std::string, Tensors> tensors_; // by these
  std::map<std::string, std::shared_ptr<Module>> modules_;
};

} // namespace

std::shared_ptr<Module> make_modules(
    const Graph& graph,
    const WeightFile& file,
    std::vector<at::Tensor>& inputs) {
  return Tree(graph, file).make(inputs);
}

} // namespace dtensor::detail
