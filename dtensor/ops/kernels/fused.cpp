// SPDX-License-Identifier: BSD-3-Clause
// Fused optimizer steps and gradient unscaling: lists of tensors that are
// updated in place, elementwise, each in its own layout. Gradients in another
// layout, such as Partial, are redistributed to the layout of their parameter.
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/scopes/plain_operand_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/dispatch_keys_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/core/List_inl.h>

#include <algorithm>
#include <string>
#include <vector>

namespace dtensor {
namespace {

using namespace detail;

void check_is_dtensor(const std::string& where, const at::Tensor& t) {
  DTENSOR_CHECK(
      is_dtensor(t),
      "[{}] got mixed plain tensor and DTensor: a list holds a plain tensor. "
      "Make it a DTensor with distribute_tensor or from_local.",
      where);
}

const SpecPtr& checked_spec(const std::string& where, const at::Tensor& t) {
  check_is_dtensor(where, t);
  check_owned_by_this_rank(where, *spec_of(t));
  DTENSOR_CHECK(
      !spec_of(t)->has_partial(),
      "[{}] cannot update a partial tensor: {}. Redistribute it to Replicate "
      "or Shard first.",
      where,
      *spec_of(t));
  return spec_of(t);
}

at::Tensor local_scalar(const at::Tensor& t) {
  return t.defined() && is_dtensor(t) ? local_of(t) : t;
}

// Returns the local tensor of an operand beside a parameter. The operand must
// have the parameter's layout, or be a step count: one element, equal on all
// ranks.
at::Tensor local_beside(
    const std::string& where,
    const at::Tensor& t,
    const SpecPtr& self) {
  if (!is_dtensor(t) && t.numel() == 1) {
    return t;
  }
  const auto& spec = checked_spec(where, t);
  if (t.numel() == 1 && spec->is_replicated()) {
    return local_of(t);
  }
  check_same_mesh(where, *self, *spec);
  DTENSOR_CHECK(
      spec->placements() == self->placements(),
      "[{}] a parameter and its state differ in layout: {} and {}. Make the "
      "state with zeros_like(parameter).",
      where,
      *self,
      *spec);
  return local_of(t);
}

// A gradient that an operator gets in another layout.
struct MovedGradient {
  at::Tensor gradient;
  LocalTensor moved;
};

// Gradients of an operator that are not in the required layout.
class Gradients {
 public:
  // Returns the local gradient in the layout `wanted`.
  at::Tensor
  local(const std::string& where, const at::Tensor& t, PlacementsRef wanted) {
    const auto& spec = spec_of(t);
    check_owned_by_this_rank(where, *spec);
    if (spec->placements() == wanted) {
      return local_of(t);
    }
    moved_.push_back({t, redistributed(where, "grads", t, wanted)});
    return moved_.back().moved.local;
  }

  // Writes the changed gradients back.
  void write_back() const {
    for (const auto& m : moved_) {
      local_of(m.gradient)
          .copy_(redistribute_local(
              m.moved.local, m.moved.spec, spec_of(m.gradient)));
    }
  }

 private:
  std::vector<MovedGradient> moved_;
};

// Returns true if every list has a plain tensor at the index: in the scope
// implicit_replication, plain parameters are updated beside DTensors.
bool is_plain_update(const KernelArgs& args, size_t index) {
  return in_implicit_replication() &&
      std::ranges::all_of(args.all(), [&](const c10::IValue& value) {
           if (!value.isTensorList()) {
             return true;
           }
           const auto list = value.toTensorList();
           return index >= list.size() || !is_dtensor(list.get(index));
         });
}

// Runs a step on the local tensors, which it updates.
void step(KernelArgs& args) {
  const auto& where = args.base_name();
  std::vector<SpecPtr> specs;
  for (const auto& t : args.at("self").toTensorVector()) {
    const bool plain = is_plain_update(args, specs.size());
    specs.push_back(plain ? nullptr : checked_spec(where, t));
  }
  Gradients gradients;
  const bool unscales = !args.get("grad_scale").isNone(); // in place
  for (const auto& argument : args.op().schema().arguments()) {
    const auto& value = args.at(argument.name());
    if (value.isTensorList()) {
      const bool is_gradients = argument.name() == "grads";
      auto list = value.toTensorVector();
      for (size_t i = 0; i < list.size(); ++i) {
        if (specs[i] == nullptr) {
          continue;
        }
        if (is_gradients && is_dtensor(list[i])) {
          check_same_mesh(where, *specs[i], *spec_of(list[i]));
          list[i] = gradients.local(where, list[i], specs[i]->placements());
        } else {
          list[i] = local_beside(where, list[i], specs[i]);
        }
      }
      args.set(argument.name(), std::move(list));
    } else if (value.isTensor()) {
      args.set(argument.name(), local_scalar(value.toTensor()));
    }
  }
  args.run_operator();
  if (unscales) {
    gradients.write_back();
  }
}

// Replaces `found` by its maximum over all ranks of the mesh.
void agree_on(const at::Tensor& found, const DeviceMesh& mesh) {
  const auto ndim = static_cast<size_t>(mesh.ndim());
  const Placements anywhere(ndim, Partial(ReduceOp::kMax));
  const auto from =
      Spec::make(mesh, anywhere, found.sizes(), found.scalar_type());
  found.copy_(redistribute_local(found, from, fully_replicated_spec(*from)));
}

// Unscales gradients and agrees on found_inf: a rank with finite shards skips
// the step if another rank's shards are not finite. Partial gradients are
// checked after they are summed, because a sum of finite terms may overflow.
// Gradients may be on several meshes, for example if part of the model is
// sharded along a second dimension.
void unscale(KernelArgs& args) {
  const auto all = args.at("self").toTensorVector();
  const auto found = local_scalar(args.tensor("found_inf"));
  Gradients gradients;
  auto locals = all;
  for (auto& t : locals) {
    if (!is_dtensor(t) && in_implicit_replication()) {
      continue;
    }
    check_is_dtensor(args.base_name(), t);
    t = gradients.local(
        args.base_name(), t, without_partial(spec_of(t)->placements()));
  }
  args.set("self", std::move(locals));
  args.set("found_inf", found);
  args.set("inv_scale", local_scalar(args.tensor("inv_scale")));
  args.run_operator();
  gradients.write_back();
  std::vector<DeviceMesh> meshes;
  for (const auto& gradient : all) {
    if (!is_dtensor(gradient)) {
      continue; // equal on all ranks
    }
    const auto& mesh = spec_of(gradient)->mesh();
    if (std::ranges::find(meshes, mesh) == meshes.end()) {
      meshes.push_back(mesh);
      agree_on(found, mesh);
    }
  }
}

} // namespace

DTENSOR_RULES(fused) {
  for (const std::string name :
       {"_fused_adagrad", "_fused_adam", "_fused_adamw", "_fused_sgd"}) {
    for (const auto* overload : {"", ".tensor_lr"}) {
      rules.kernel(name + "_" + overload, with_args(step));
      rules.keep_composite(name + overload);
    }
  }
  rules.kernel(
      "_amp_foreach_non_finite_check_and_unscale_", with_args(unscale));
}

} // namespace dtensor
