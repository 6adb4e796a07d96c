// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/autograd_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <dtensor/comm/observer.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/meta_impl.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace dtensor::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Specs ride in the context as opaque values.
struct SpecHolder : torch::CustomClassHolder {
  SpecHolder(SpecPtr s, Placements g)
      : spec(std::move(s)),
        grad(std::move(g)) {}
  SpecPtr spec;
  Placements grad;
  // Backward collectives are the doing of the module that ran forward.
  std::string_view module = ModuleScope::current();
};

// Undefined gradients stay undefined: a zero of the global shape would be a
// plain tensor.
void save(AutogradContext* ctx, SpecPtr spec, Placements grad) {
  ctx->set_materialize_grads(false);
  ctx->saved_data["spec"] = c10::IValue::make_capsule(
      c10::make_intrusive<SpecHolder>(std::move(spec), std::move(grad)));
}

const SpecHolder& saved(AutogradContext* ctx) {
  return *static_cast<SpecHolder*>(ctx->saved_data["spec"].toCapsule().get());
}

at::Tensor cast(const at::Tensor& t, at::ScalarType dtype) {
  return t.scalar_type() == dtype ? t : t.to(dtype);
}

// `part` with its dimensions in memory in the order of `strides`. The spec of a
// gradient must not depend on how this rank's kernel happened to lay its part
// out: ranks with unlike specs would communicate differently.
at::Tensor in_order_of(SizesRef strides, const at::Tensor& part) {
  const auto wanted = dense_strides(part.sizes(), strides);
  std::vector<int64_t> order(static_cast<size_t>(part.dim()));
  std::iota(order.begin(), order.end(), 0);
  bool same = true;
  for (const auto d : order) {
    const auto i = static_cast<size_t>(d);
    same &= part.size(d) <= 1 || part.stride(d) == wanted[i];
  }
  if (same || part.numel() == 0) {
    return part;
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return wanted[static_cast<size_t>(a)] > wanted[static_cast<size_t>(b)];
  });
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return part.permute(order).contiguous().permute(back);
}

struct FromLocal : torch::autograd::Function<FromLocal> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& local,
      const SpecPtr& spec,
      const Placements& grad) {
    save(ctx, spec, grad);
    return wrap(local.detach(), spec);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) {
      return {at::Tensor(), at::Tensor(), at::Tensor()};
    }
    const auto& s = saved(ctx);
    const ModuleScope scope(s.module, /*backward=*/true);
    const auto target = spec_of(grads[0])->with_placements(s.grad);
    return {
        to_local_autograd(redistribute_autograd(grads[0], target)),
        at::Tensor(),
        at::Tensor()};
  }
};

at::Tensor cast_and_redistribute(const at::Tensor& dtensor, const SpecPtr& to) {
  return redistribute_local(
      cast(local_of(dtensor), to->dtype()),
      spec_of(dtensor)->with_dtype(to->dtype()),
      to);
}

struct ToLocal : torch::autograd::Function<ToLocal> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& dtensor,
      const Placements& grad) {
    save(ctx, spec_of(dtensor), grad);
    return local_of(dtensor).detach();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) {
      return {at::Tensor(), at::Tensor()};
    }
    const auto& s = saved(ctx);
    const ModuleScope scope(s.module, /*backward=*/true);
    const auto strides = dense_strides(s.spec->sizes(), s.spec->strides());
    const auto spec = s.spec->with_tensor(s.grad, s.spec->sizes(), strides)
                          ->with_dtype(grads[0].scalar_type());
    const auto part = s.spec->mesh().contains_this_rank()
        ? in_order_of(strides, grads[0])
        : grads[0];
    return {from_local_autograd(part, spec), at::Tensor()};
  }
};

struct Redistribute : torch::autograd::Function<Redistribute> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& dtensor,
      const SpecPtr& to,
      at::ScalarType grad_dtype) {
    const auto& from = spec_of(dtensor);
    save(ctx, from, without_partial(from->placements()));
    ctx->saved_data["grad_dtype"] = static_cast<int64_t>(grad_dtype);
    auto local = cast_and_redistribute(dtensor, to);
    return wrap(
        local.is_same(local_of(dtensor)) ? local.detach() : std::move(local),
        to);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) {
      return {at::Tensor(), at::Tensor(), at::Tensor()};
    }
    const auto dtype =
        static_cast<at::ScalarType>(ctx->saved_data["grad_dtype"].toInt());
    const auto& s = saved(ctx);
    const ModuleScope scope(s.module, /*backward=*/true);
    const auto target =
        spec_of(grads[0])->with_placements(s.grad)->with_dtype(dtype);
    return {
        cast(redistribute_autograd(grads[0], target), s.spec->dtype()),
        at::Tensor(),
        at::Tensor()};
  }
};

at::Tensor nothing(const SpecPtr& spec) {
  const auto options = at::TensorOptions()
                           .dtype(spec->dtype())
                           .device(spec->mesh().device_type());
  return wrap(at::empty({0}, options), spec);
}

struct Nothing : torch::autograd::Function<Nothing> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::TensorList& inputs,
      const SpecPtr& spec) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward(inputs.vec());
    return nothing(spec);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result;
    for (const auto& input : ctx->get_saved_variables()) {
      result.push_back(
          grads[0].defined() ? nothing(spec_of(input)) : at::Tensor());
    }
    result.emplace_back(); // of the spec
    return result;
  }
};

bool records(const at::Tensor& t) {
  return c10::GradMode::is_enabled() && t.requires_grad();
}

} // namespace

Placements without_partial(PlacementsRef placements) {
  Placements result(placements.begin(), placements.end());
  for (auto& p : result) {
    if (p.is_partial()) {
      p = Replicate();
    }
  }
  return result;
}

at::Tensor from_local_autograd(
    const at::Tensor& local,
    const SpecPtr& spec,
    const std::optional<Placements>& grad_placements) {
  if (!records(local)) {
    return wrap(local.requires_grad() ? local.detach() : local, spec);
  }
  return FromLocal::apply(
      local,
      spec,
      grad_placements.value_or(without_partial(spec->placements())));
}

at::Tensor to_local_autograd(
    const at::Tensor& dtensor,
    const std::optional<Placements>& grad_placements) {
  if (!records(dtensor)) {
    return local_of(dtensor);
  }
  return ToLocal::apply(
      dtensor,
      grad_placements.value_or(
          without_partial(spec_of(dtensor)->placements())));
}

at::Tensor nothing_from(at::TensorList inputs, const SpecPtr& spec) {
  return inputs.empty() ? nothing(spec) : Nothing::apply(inputs, spec);
}

at::Tensor redistribute_autograd(
    const at::Tensor& dtensor,
    const SpecPtr& to,
    std::optional<at::ScalarType> backward_dtype) {
  const auto& from = spec_of(dtensor);
  if (from == to ||
      (from->placements() == to->placements() &&
       from->dtype() == to->dtype())) {
    return dtensor;
  }
  if (!records(dtensor)) {
    return wrap(cast_and_redistribute(dtensor, to), to);
  }
  return Redistribute::apply(
      dtensor, to, backward_dtype.value_or(dtensor.scalar_type()));
}

} // namespace dtensor::detail
