// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/contrib/legacy_tp/torch_2_0.h>

#include <c10/util/StringUtil.h>
#include <dtensor/contrib/legacy_tp/torch_2_0_attention.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/attention_parallel.h>
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/tensor/dtensor.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace dtensor::torch_2_0 {
namespace {

// --- functions of inputs and outputs
// ------------------------------------------

constexpr const char* kNotOneDim =
    "[{}] tensor parallelism runs along one mesh dimension, but the mesh is "
    "{}. Pass a slice, such as mesh[\"tp\"].";

DeviceMesh mesh_of_input(
    const char* where,
    const at::Tensor& input,
    const DeviceMesh& given) {
  DTENSOR_CHECK(
      input.defined(),
      "[{}] the input is undefined. Pass a plain tensor or a DTensor.",
      where);
  DTENSOR_CHECK(
      given.defined() || is_dtensor(input),
      "[{}] the input is a plain tensor, and no mesh was passed. Pass a mesh.",
      where);
  auto mesh = given.defined() ? given : DTensor(input).device_mesh();
  DTENSOR_CHECK(mesh.ndim() == 1, kNotOneDim, where, mesh);
  return mesh;
}

at::Tensor make_input(
    const char* where,
    const at::Tensor& input,
    const DeviceMesh& given,
    const Placement& of_plain,
    const Placement& desired) {
  const auto mesh = mesh_of_input(where, input, given);
  const DTensor distributed =
      is_dtensor(input) ? input : DTensor::from_local(input, mesh, {of_plain});
  return distributed.redistribute(mesh, {desired});
}

DTensor checked_output(
    const char* where,
    const at::Tensor& output,
    const DeviceMesh& given) {
  DTENSOR_CHECK_TYPE(
      is_dtensor(output),
      "[{}] the output is {}. Pass the DTensor that a parallel module made.",
      where,
      output.defined() ? "a plain tensor" : "undefined");
  DTensor result(output);
  const auto& mesh = given.defined() ? given : result.device_mesh();
  DTENSOR_CHECK_VALUE(mesh.ndim() == 1, kNotOneDim, where, mesh);
  return result;
}

at::Tensor make_output(
    const char* where,
    const at::Tensor& output,
    const DeviceMesh& given,
    const Placement& desired) {
  const auto result = checked_output(where, output, given);
  return result.redistribute(
      given.defined() ? given : result.device_mesh(), {desired});
}

} // namespace

at::Tensor make_input_replicate_1d(
    const at::Tensor& input,
    const DeviceMesh& device_mesh) {
  return make_input(
      "make_input_replicate_1d", input, device_mesh, Replicate(), Replicate());
}

at::Tensor make_input_reshard_replicate(
    const at::Tensor& input,
    const DeviceMesh& device_mesh) {
  return make_input(
      "make_input_reshard_replicate",
      input,
      device_mesh,
      Shard(0),
      Replicate());
}

at::Tensor make_input_shard_1d(
    const at::Tensor& input,
    const DeviceMesh& device_mesh,
    int64_t dim) {
  return make_input(
      "make_input_shard_1d", input, device_mesh, Shard(dim), Shard(dim));
}

at::Tensor make_input_shard_1d_last_dim(
    const at::Tensor& input,
    const DeviceMesh& device_mesh) {
  return make_input(
      "make_input_shard_1d_last_dim", input, device_mesh, Shard(-1), Shard(-1));
}

at::Tensor make_output_replicate_1d(
    const at::Tensor& output,
    const DeviceMesh& device_mesh) {
  return make_output(
      "make_output_replicate_1d", output, device_mesh, Replicate());
}

at::Tensor make_output_shard_1d(
    const at::Tensor& output,
    const DeviceMesh& device_mesh,
    int64_t dim) {
  return make_output("make_output_shard_1d", output, device_mesh, Shard(dim));
}

at::Tensor make_output_tensor(
    const at::Tensor& output,
    const DeviceMesh& device_mesh) {
  return to_local(
      make_output("make_output_tensor", output, device_mesh, Replicate()));
}

at::Tensor make_output_reshard_tensor(
    const at::Tensor& output,
    const DeviceMesh& device_mesh) {
  return to_local(
      make_output("make_output_reshard_tensor", output, device_mesh, Shard(0)));
}

at::Tensor make_sharded_output_tensor(
    const at::Tensor& output,
    const DeviceMesh& device_mesh) {
  return checked_output("make_sharded_output_tensor", output, device_mesh)
      .to_local();
}

// --- styles ------------------------------------------------------------------

namespace {

void check_kind(const char* style, const StyleTarget& target) {
  DTENSOR_CHECK(
      target.module.as<torch::nn::Linear>() != nullptr ||
          target.module.as<torch::nn::Embedding>() != nullptr,
      "[{}] cannot style {}: only torch::nn::Linear and torch::nn::Embedding "
      "are supported. Style its children instead, or use PairwiseParallel.",
      style,
      target.describe());
}

// Applies PairwiseParallel to a module and its descendants.
class Pairing {
 public:
  explicit Pairing(const PairwiseOptions& options) : options_(options) {}

  void visit(const StyleTarget& target) {
    if (!seen_.insert(&target.module).second) {
      return; // shared by two parents
    }
    if (target.module.as<torch::nn::MultiheadAttention>() != nullptr) {
      style_in_place(target);
    } else if (
        auto* ours = target.module.as<TensorParallelMultiheadAttention>()) {
      style_attention(target, *ours);
    } else if (const auto linears = linears_of(target); linears.size() > 1) {
      style_linears(linears);
    } else {
      for (const auto& child : target.module.named_children()) {
        visit(target.child_target(child.key(), *child.value()));
      }
    }
  }

  bool found_any() const {
    return found_any_;
  }

 private:
  static std::vector<StyleTarget> linears_of(const StyleTarget& target) {
    std::vector<StyleTarget> linears;
    std::set<const torch::nn::Module*> seen;
    for (const auto& child : target.module.named_children()) {
      if (child.value()->as<torch::nn::Linear>() != nullptr &&
          seen.insert(child.value().get()).second) {
        linears.push_back(target.child_target(child.key(), *child.value()));
      }
    }
    return linears;
  }

  // Plain inputs can only be the module's own inputs, because all tensors
  // inside are DTensors.
  void columns(const StyleTarget& target, int64_t unit = 1) const {
    dtensor::ColwiseParallel({.input_layouts = options_.input_layouts,
                              .output_layouts = Shard(-1),
                              .use_local_output = false,
                              .multiple_of = unit})
        .apply(target);
  }

  void rows(const StyleTarget& target, bool last, int64_t unit = 1) const {
    dtensor::RowwiseParallel(
        {.input_layouts = options_.input_layouts,
         .output_layouts = last ? options_.output_layouts : Replicate(),
         .use_local_output = last && options_.use_local_output,
         .multiple_of = unit})
        .apply(target);
  }

  void style_linears(const std::vector<StyleTarget>& linears) {
    for (size_t i = 1; i < linears.size(); i += 2) {
      columns(linears[i - 1]);
      rows(linears[i], /*last=*/i + 2 >= linears.size());
    }
    found_any_ = true;
  }

  // Styles the module itself. A C++ member has a fixed type, so the module
  // cannot be replaced as in Python.
  void style_in_place(const StyleTarget& target) {
    DTENSOR_CHECK_NOT_IMPLEMENTED(
        options_.input_layouts == Placement(Replicate()),
        "[PairwiseParallel] {} reads the sizes of its inputs, which are "
        "sharded, {}. Use "
        "torch_2_0::TensorParallelMultiheadAttention, which can copy() it.",
        target.describe(),
        to_string(options_.input_layouts));
    AttentionParallel({.output_layouts = options_.output_layouts,
                       .use_local_output = options_.use_local_output})
        .apply(target);
    found_any_ = true;
  }

  // Shards between heads. Rows of qkv are ordered by head.
  void style_attention(
      const StyleTarget& target,
      TensorParallelMultiheadAttentionImpl& attention) {
    const auto heads = attention.num_heads();
    for (const auto& projection : attention.named_children()) {
      const auto linear =
          target.child_target(projection.key(), *projection.value());
      const auto& weight = projection.value()->as<torch::nn::Linear>()->weight;
      if (projection.key() == "proj") {
        rows(linear, /*last=*/true, weight.size(1) / heads);
      } else {
        columns(linear, weight.size(0) / heads);
      }
    }
    found_any_ = true;
  }

  PairwiseOptions options_;
  std::set<const torch::nn::Module*> seen_;
  bool found_any_ = false;
};

torch::nn::Module& child_called(
    const torch::nn::Module& parent,
    const std::string& token,
    const std::string& name) {
  const auto children = parent.named_children();
  const auto* const child = children.find(token);
  DTENSOR_CHECK_VALUE(
      child != nullptr,
      "[torch_2_0::parallelize_module] there is no module \"{}\". {}. Use full "
      "names; only dtensor::parallelize_module accepts patterns.",
      name,
      children.is_empty()
          ? "There are no names at that level"
          : "Names at that level: " + c10::Join(", ", children.keys()));
  return **child;
}

torch::nn::Module& find(torch::nn::Module& root, const std::string& name) {
  auto* module = &root;
  for (size_t begin = 0; !name.empty() && begin <= name.size();) {
    const auto end = std::min(name.find('.', begin), name.size());
    module = &child_called(*module, name.substr(begin, end - begin), name);
    begin = end + 1;
  }
  return *module;
}

// Style that applies a plan of full names to a module.
class FullNames final : public ParallelStyle {
 public:
  explicit FullNames(const ParallelizePlan& plan) : plan_(plan) {}
  void apply(const StyleTarget& target) const override {
    apply_together(target, [&](const StyleTarget& root) {
      for (const auto& [name, style] : plan_) {
        DTENSOR_CHECK(
            style != nullptr,
            "[torch_2_0::parallelize_module] the plan has no style for \"{}\". "
            "Add a style, such as PairwiseParallel().",
            name);
        auto& module = find(target.module, name);
        style->apply(name.empty() ? root : root.child_target(name, module));
      }
    });
  }

 private:
  const ParallelizePlan& plan_;
};

} // namespace

void ColwiseParallel::apply(const StyleTarget& target) const {
  check_kind("ColwiseParallel", target);
  dtensor::ColwiseParallel({.input_layouts = options_.input_layouts,
                            .output_layouts = options_.output_layouts,
                            .use_local_output = options_.use_local_output})
      .apply(target);
}

void RowwiseParallel::apply(const StyleTarget& target) const {
  check_kind("RowwiseParallel", target);
  dtensor::RowwiseParallel({.input_layouts = options_.input_layouts,
                            .output_layouts = options_.output_layouts,
                            .use_local_output = options_.use_local_output})
      .apply(target);
}

void PairwiseParallel::apply(const StyleTarget& target) const {
  apply_together(target, [&](const StyleTarget& root) {
    Pairing pairing(options_);
    pairing.visit(root);
    DTENSOR_CHECK(
        pairing.found_any(),
        "[PairwiseParallel] {} has nothing to pair: a pair is two "
        "torch::nn::Linear children of one module. Use ColwiseParallel or "
        "RowwiseParallel for a single Linear.",
        target.describe());
  });
}

void parallelize_module(
    torch::nn::Module& module,
    const DeviceMesh& mesh,
    const ParallelStyle& style,
    int64_t tp_mesh_dim) {
  DTENSOR_CHECK_VALUE(
      mesh.defined(),
      "[torch_2_0::parallelize_module] the mesh is undefined. Use "
      "init_device_mesh.");
  DTENSOR_CHECK_INDEX(
      0 <= tp_mesh_dim && tp_mesh_dim < mesh.ndim(),
      "[torch_2_0::parallelize_module] no mesh dimension {}: the mesh is {}. "
      "Pass a tp_mesh_dim from 0 to {}.",
      tp_mesh_dim,
      mesh,
      mesh.ndim() - 1);
  dtensor::parallelize_module(module, mesh[tp_mesh_dim], style);
}

void parallelize_module(
    torch::nn::Module& module,
    const DeviceMesh& mesh,
    const ParallelizePlan& plan,
    int64_t tp_mesh_dim) {
  parallelize_module(module, mesh, FullNames(plan), tp_mesh_dim);
}

} // namespace dtensor::torch_2_0
