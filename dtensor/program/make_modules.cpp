// SPDX-License-Identifier: BSD-3-Clause
// Creates modules for the parameters and buffers of a graph, according to the
// calls that use them.
#include <dtensor/program/program_state_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/program/module_tree.h>
#include <dtensor/weights/weight_contents_impl.h>

#include <ATen/ops/empty.h>

#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

namespace dtensor::detail {
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

} // namespace dtensor::detail
