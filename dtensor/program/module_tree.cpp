// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/module_tree.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/program/interpreter_impl.h>
#include <dtensor/weights/weight_contents_impl.h>

#include <ATen/ops/empty.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace dtensor {
namespace {

using torch::nn::Module;

// "layers.0.fc.weight" -> ("layers.0.fc", "weight").
std::pair<std::string, std::string> split_name(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos
      ? std::pair{std::string(), name}
      : std::pair{name.substr(0, dot), name.substr(dot + 1)};
}

struct Tensors {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  WeightRole role = WeightRole::kNone;
};

// A LibTorch module without values of its own that holds the given tensors. It
// is constructed empty, so that it draws no random numbers.
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

  // Renames the parameters.
  void rename(
      const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
    this->parameters_.clear();
    for (const auto& [name, t] : parameters) {
      this->register_parameter(name, t, t.requires_grad());
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
    const at::Tensor& bias,
    const Tensors& named) {
  const auto options = [&](int64_t in, int64_t out) {
    return torch::nn::LinearOptions(in, out).bias(bias.defined());
  };
  auto linear = std::make_shared<Holding<torch::nn::LinearImpl>>(
      options(1, 0), options(weight.size(1), weight.size(0)), weight, bias);
  linear->rename(named.parameters);
  return linear;
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

void register_in(Module& module, const Tensors& tensors) {
  for (const auto& [name, t] : tensors.parameters) {
    module.register_parameter(name, t, t.requires_grad());
  }
  for (const auto& [name, t] : tensors.buffers) {
    module.register_buffer(name, t);
  }
}

class Tree {
 public:
  explicit Tree(const std::vector<ModuleTensor>& all) {
    for (const auto& one : all) {
      const auto [path, name] = split_name(one.name);
      if (tensors_.count(path) == 0) {
        paths_.push_back(path);
      }
      auto& tensors = tensors_[path];
      (one.is_buffer ? tensors.buffers : tensors.parameters)
          .emplace_back(name, one.tensor);
      if (name == "weight" || one.role == WeightRole::kLinear) {
        tensors.role = one.role;
      }
    }
  }

  std::shared_ptr<Module> make() {
    auto root = std::make_shared<Module>("Program");
    modules_[""] = root;
    for (const auto& path : paths_) {
      module_of(path);
    }
    register_in(*root, tensors_[""]);
    return root;
  }

 private:
  // Returns the module at `path`, created together with its parents.
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
    return tensors.buffers.empty() &&
        std::ranges::all_of(tensors.parameters, [](const auto& parameter) {
             return parameter.first == "weight" || parameter.first == "bias";
           });
  }

  // Returns a linear module if there is one matrix and possibly a bias, under
  // any names.
  static std::shared_ptr<Module> maybe_linear(const Tensors& tensors) {
    at::Tensor weight;
    at::Tensor bias;
    for (const auto& [name, t] : tensors.parameters) {
      auto& member = t.dim() == 2 ? weight : bias;
      if (member.defined()) {
        return nullptr;
      }
      member = t;
    }
    const bool fits = tensors.role == WeightRole::kLinear && weight.defined() &&
        tensors.buffers.empty() &&
        (!bias.defined() ||
         (bias.dim() == 1 && bias.size(0) == weight.size(0)));
    return fits ? linear_of(weight, bias, tensors) : nullptr;
  }

  static at::Tensor named(const Tensors& tensors, std::string_view name) {
    const auto found = std::ranges::find(
        tensors.parameters, name, [](const auto& p) { return p.first; });
    return found == tensors.parameters.end() ? at::Tensor() : found->second;
  }

  static std::shared_ptr<Module> made_of(
      const Tensors& tensors,
      const std::string& name) {
    if (auto linear = maybe_linear(tensors)) {
      return linear;
    }
    const auto weight = named(tensors, "weight");
    const auto bias = named(tensors, "bias");
    if (is_only_weight_and_bias(tensors) && weight.defined()) {
      if (tensors.role == WeightRole::kEmbedding && weight.dim() == 2 &&
          !bias.defined()) {
        return embedding_of(weight);
      }
      if (tensors.role == WeightRole::kLayerNorm && bias.defined()) {
        return layer_norm_of(weight, bias);
      }
    }
    auto module = std::make_shared<Module>(name);
    register_in(*module, tensors);
    return module;
  }

  std::vector<std::string> paths_; // of modules, in the order of the tensors
  std::map<std::string, Tensors> tensors_; // by path
  std::map<std::string, std::shared_ptr<Module>> modules_;
};

} // namespace

std::shared_ptr<Module> module_tree(const std::vector<ModuleTensor>& tensors) {
  return Tree(tensors).make();
}

// --- modules of a graph
// -------------------------------------------------------

namespace detail {
namespace {

// Returns the argument of the operator that is a module's weight, and the
// module's role.
std::pair<WeightRole, size_t> role_in(const std::string& target) {
  return target == "aten::linear"    ? std::pair(WeightRole::kLinear, 1)
      : target == "aten::embedding"  ? std::pair(WeightRole::kEmbedding, 0)
      : target == "aten::layer_norm" ? std::pair(WeightRole::kLayerNorm, 2)
                                     : std::pair(WeightRole::kNone, 0);
}

// Roles of weights in the first call that uses them.
struct Uses {
  std::map<std::string, WeightRole> by_module; // module that made the call
  std::map<Slot, WeightRole> by_slot;
};

// Returns the calls that use a value as a weight.
Uses uses_of(const Graph& graph) {
  Uses uses;
  for (const auto& node : graph.nodes) {
    const auto [role, index] = role_in(node.target);
    if (role == WeightRole::kNone || index >= node.args.size()) {
      continue;
    }
    if (const auto* value = std::get_if<ValueOperand>(&node.args[index])) {
      uses.by_module.emplace(node.module, role);
      uses.by_slot.emplace(value->slot, role);
    }
  }
  return uses;
}

// Returns the role of an input's module. The graph uses one slot for all tied
// weights, so the role follows from the module name at each call.
WeightRole role_of(const GraphInput& input, const Uses& uses) {
  const auto named = uses.by_module.find(split_name(input.name).first);
  if (named != uses.by_module.end()) {
    return named->second;
  }
  const auto used = uses.by_slot.find(input.slot);
  return used == uses.by_slot.end() ? WeightRole::kNone : used->second;
}

// Creates weights without data. A weight that the file stores once becomes one
// tensor.
class Weights {
 public:
  explicit Weights(const WeightFile& file) : file_(file) {}

  at::Tensor tensor_of(const GraphInput& input) {
    const auto* weight = file_.find(input.name);
    DTENSOR_CHECK_VALUE(
        weight != nullptr,
        "[load_program] {} has no values for {}. Export the program again.",
        file_.path(),
        input.name);
    auto& made = made_[place_of(*weight)];
    for (const auto& [name, tied] : made) {
      if (file_.is_same(name, input.name)) {
        return tied;
      }
    }
    auto t = at::empty(
        weight->sizes, at::TensorOptions(weight->dtype).device(c10::kMeta));
    const bool wants_grad =
        input.kind == InputKind::kParameter && input.requires_grad;
    DTENSOR_CHECK_VALUE(
        !wants_grad || t.is_floating_point() || t.is_complex(),
        "[load_program] {}: parameter {} is {} and requires a gradient, but "
        "only floating-point and complex tensors can. Export the program "
        "again.",
        file_.path(),
        input.name,
        short_name(weight->dtype));
    t.set_requires_grad(wants_grad);
    made.emplace_back(input.name, t);
    return t;
  }

 private:
  using Place = std::tuple<const std::byte*, size_t, Sizes, Sizes>;

  // Returns a key that tied weights share. A search of all other weights would
  // take a time quadratic in their number.
  Place place_of(const WeightInfo& weight) const {
    const auto& stored = file_.contents().stored_as(weight);
    return {stored.data, stored.bytes, weight.sizes, stored.strides};
  }

  const WeightFile& file_;
  std::map<Place, std::vector<std::pair<std::string, at::Tensor>>> made_;
};

} // namespace

std::shared_ptr<torch::nn::Module> make_modules(
    const Graph& graph,
    const WeightFile& file,
    std::vector<at::Tensor>& inputs) {
  const auto uses = uses_of(graph);
  Weights weights(file);
  std::vector<ModuleTensor> tensors;
  inputs.assign(graph.inputs.size(), at::Tensor());
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const auto& input = graph.inputs[i];
    const bool is_buffer = input.kind == InputKind::kBuffer;
    if (is_buffer || input.kind == InputKind::kParameter) {
      inputs[i] = weights.tensor_of(input);
      tensors.push_back(
          {input.name, inputs[i], is_buffer, role_of(input, uses)});
    }
  }
  return module_tree(tensors);
}

} // namespace detail
} // namespace dtensor
