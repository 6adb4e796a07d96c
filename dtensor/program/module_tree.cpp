// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/module_tree.h>

#include <dtensor/program/program_state_impl.h>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <map>
#include <string_view>

namespace dtensor {
namespace {

using torch::nn::Module;

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
      const auto [path, name] = detail::split_name(one.name);
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
    const auto [parent, name] = detail::split_name(path);
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

} // namespace dtensor
