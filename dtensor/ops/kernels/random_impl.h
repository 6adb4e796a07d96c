// SPDX-License-Identifier: BSD-3-Clause
// Helpers of the random operators.
#pragma once

#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/path/decide_impl.h>
#include <dtensor/random/sample_impl.h>
#include <dtensor/tensor/memory_order_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

namespace dtensor::detail {

inline void refuse_generator(const KernelArgs& args) {
  const auto i = args.find("generator");
  DTENSOR_CHECK_VALUE(
      i < 0 || args.at(i).isNone() ||
          args.at(i).toGenerator() == at::detail::getDefaultCPUGenerator(),
      "[{}] a generator was given, but a DTensor draws by global index from "
      "the stream of its rank. Leave the generator out, and seed that stream: "
      "dtensor::manual_seed() in C++, torch.manual_seed() in Python.",
      args.name());
}

// Throws for complex numbers, which have no order and no counts.
inline void check_real(const KernelArgs& args, at::ScalarType dtype) {
  DTENSOR_CHECK_TYPE(
      !c10::isComplexType(dtype),
      "[{}] draws real numbers, got {}. Convert the tensor first.",
      args.name(),
      short_name(dtype));
}

inline void refuse_partial(const KernelArgs& args, const Spec& spec) {
  DTENSOR_CHECK_VALUE(
      !spec.has_partial(),
      "[{}] cannot fill {} with random values: they would be reduced over "
      "ranks. Redistribute it to Shard or Replicate first.",
      args.name(),
      spec);
}

// Returns sample(draw), this rank's values of a tensor of `spec`. Ranks without
// values also advance the random stream. Ranks outside the mesh get an empty
// tensor, and meta tensors have no values.
template <class Sample>
at::Tensor
draw_local(const Spec& spec, at::Device device, const Sample& sample) {
  const auto draw = next_draw(spec.mesh());
  return spec.mesh().contains_this_rank() && !device.is_meta()
      ? sample(draw)
      : at::empty(
            spec.local_sizes(), at::TensorOptions(spec.dtype()).device(device));
}

// Runs self.op_(...): `sample(spec, draw)` returns the new local values. Called
// only on ranks with values.
template <class Sample>
void fill_self(KernelArgs& args, const Sample& sample) {
  refuse_generator(args);
  const auto self = args.tensor("self");
  const auto spec = spec_of(self);
  check_owned_by_this_rank(args.name(), *spec);
  refuse_partial(args, *spec);
  check_not_expanded(args.name(), *spec);
  const auto draw = next_draw(spec->mesh());
  if (spec->mesh().contains_this_rank() && !self.is_meta()) {
    local_of(self).copy_(sample(*spec, draw));
  }
  args.returns(self);
}

inline SpecPtr without_partial(const Spec& spec, at::ScalarType dtype) {
  return Spec::make(
      spec.mesh(),
      detail::without_partial(spec.placements()),
      spec.sizes(),
      dense_strides(spec.sizes(), spec.strides()),
      dtype);
}

// Makes a new tensor in the layout of `like`, with Replicate in place of
// Partial.
template <class Sample>
void new_like(
    KernelArgs& args,
    const at::Tensor& like,
    at::ScalarType dtype,
    const Sample& sample) {
  refuse_generator(args);
  check_owned_by_this_rank(args.name(), *spec_of(like));
  const auto spec = without_partial(*spec_of(like), dtype);
  auto local = draw_local(*spec, like.device(), [&](Draw draw) {
    return in_memory_order(
        sample(*spec, draw).to(local_of(like).device(), dtype),
        spec->strides());
  });
  args.returns(wrap(std::move(local), spec));
}

inline at::ScalarType dtype_of(const KernelArgs& args) {
  return args.is_none("dtype") ? args.tensor("self").scalar_type()
                               : args.at("dtype").toScalarType();
}

} // namespace dtensor::detail
