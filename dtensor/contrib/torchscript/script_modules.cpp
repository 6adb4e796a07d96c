// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/contrib/torchscript/read_script_impl.h>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/inliner.h>

#include <map>

namespace dtensor::torchscript {
namespace {

namespace jit = torch::jit;

std::optional<int64_t> int_of(const jit::Value* value) {
  const auto constant = jit::toIValue(value);
  return constant && constant->isInt() ? std::optional(constant->toInt())
                                       : std::nullopt;
}

// Returns the matrix whose transpose is `value`; null if `value` is not a
// transpose.
const jit::Value* transposed(const jit::Value* value) {
  const auto& node = *value->node();
  const auto kind = kind_of(node);
  if (kind == "aten::t" || kind == "aten::numpy_T") {
    return node.input(0);
  }
  if (kind != "aten::transpose") {
    return nullptr;
  }
  const auto a = int_of(node.input(1));
  const auto b = int_of(node.input(2));
  const auto is_of_two = [](const auto& dim) {
    return dim && *dim >= -2 && *dim <= 1;
  };
  const bool swaps = is_of_two(a) && is_of_two(b) && (*a - *b) % 2 != 0;
  return swaps ? node.input(0) : nullptr;
}

std::optional<WeightCall> product(
    const jit::Value* input,
    const jit::Value* matrix,
    const jit::Value* bias) {
  const auto* weight = transposed(matrix);
  return weight == nullptr
      ? std::nullopt
      : std::optional(WeightCall{WeightRole::kLinear, weight, input, bias});
}

// Returns the role of a module by its class:
// "__torch__.torch.nn.modules.linear.Linear". If there are several such
// classes, the name contains a mangled component:
// "linear.___torch_mangle_3.Linear".
WeightRole role_of(const jit::Module& module) {
  const auto name = module.type()->name();
  if (!name) {
    return WeightRole::kNone;
  }
  const std::string_view class_name = name->name();
  return class_name == "Linear"   ? WeightRole::kLinear
      : class_name == "Embedding" ? WeightRole::kEmbedding
      : class_name == "LayerNorm" ? WeightRole::kLayerNorm
                                  : WeightRole::kNone;
}

// Roles of weights, by name.
using Roles = std::map<std::string, WeightRole>;

void find_roles(const jit::Block& block, Roles& roles) {
  for (const auto* node : block.nodes()) {
    if (const auto call = weight_call(*node)) {
      roles.emplace(attribute_name(*call->weight), call->role);
    }
    for (const auto* inner : node->blocks()) {
      find_roles(*inner, roles);
    }
  }
}

} // namespace

std::string_view kind_of(const jit::Node& node) {
  return node.kind().toQualString();
}

std::shared_ptr<jit::Graph> inlined_forward(const jit::Module& script) {
  const auto forward = script.find_method("forward");
  if (!forward) {
    return nullptr;
  }
  auto graph = forward->graph()->copy();
  jit::Inline(*graph);
  return graph;
}

std::optional<WeightCall> weight_call(const jit::Node& node) {
  const auto kind = kind_of(node);
  const auto inputs = node.inputs();
  if (kind == "aten::linear") {
    return WeightCall{WeightRole::kLinear, inputs[1], inputs[0], inputs[2]};
  }
  if (kind == "aten::embedding") {
    return WeightCall{WeightRole::kEmbedding, inputs[0], inputs[1]};
  }
  if (kind == "aten::layer_norm") {
    return WeightCall{WeightRole::kLayerNorm, inputs[2], inputs[0], inputs[3]};
  }
  if ((kind == "aten::matmul" || kind == "aten::mm") && inputs.size() == 2) {
    return product(inputs[0], inputs[1], nullptr);
  }
  if (kind == "aten::addmm" && inputs.size() == 5 && int_of(inputs[3]) == 1 &&
      int_of(inputs[4]) == 1) {
    return product(inputs[1], inputs[2], inputs[0]);
  }
  return std::nullopt;
}

std::string attribute_name(const jit::Value& value) {
  std::string name;
  const auto* from = &value;
  while (kind_of(*from->node()) == "prim::GetAttr") {
    name.insert(0, name.empty() ? "" : ".");
    name.insert(0, from->node()->s(c10::attr::name));
    from = from->node()->input();
  }
  const bool is_self = from == from->owningGraph()->inputs()[0];
  return is_self ? name : "";
}

std::vector<ModuleTensor> script_tensors(
    const jit::Module& script,
    const jit::Graph* forward) {
  Roles roles;
  if (forward != nullptr) {
    find_roles(*forward->block(), roles);
  }
  std::vector<ModuleTensor> tensors;
  for (const auto& module : script.named_modules()) {
    const auto prefix = module.name.empty() ? "" : module.name + ".";
    const auto role = role_of(module.value);
    for (const auto& p : module.value.named_parameters(/*recurse=*/false)) {
      const auto used = roles.find(prefix + p.name);
      const bool is_decided = role != WeightRole::kNone || used == roles.end();
      tensors.push_back(
          {prefix + p.name, p.value, false, is_decided ? role : used->second});
    }
    for (const auto& b : module.value.named_buffers(/*recurse=*/false)) {
      tensors.push_back({prefix + b.name, b.value, true, WeightRole::kNone});
    }
  }
  return tensors;
}

} // namespace dtensor::torchscript
