// SPDX-License-Identifier: BSD-3-Clause
// Tests of operators that another library registers for CPU and Meta only.
#include "tests/ops/against_plain.h"

#include <ATen/ScalarOps.h>
#include <dtensor/ops/register_sharding.h>
#include <torch/library.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

at::Tensor twice(const at::Tensor& t) {
  return t * 2;
}
at::Tensor twice_meta(const at::Tensor& t) {
  return at::empty_like(t);
}
at::Tensor& add_one_(at::Tensor& t) {
  return t.add_(1);
}
at::Tensor above_zero(const at::Tensor& t) {
  return at::masked_select(t, t > 0);
}
at::Tensor refuses(const at::Tensor& t) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "\"refuses\" not implemented for '", t.scalar_type(), "'");
}
at::Tensor noisy(const at::Tensor& t) {
  return t + at::rand_like(t);
}

// Multiplies by a number. The Meta kernel is as strict as the Meta kernels that
// PyTorch writes in Python: a wrapped number must be on the CPU.
at::Tensor scaled(const at::Tensor& t, const at::Tensor& number) {
  return t * number;
}
at::Tensor scaled_meta(const at::Tensor& t, const at::Tensor& number) {
  TORCH_CHECK(number.unsafeGetTensorImpl()->is_wrapped_number());
  TORCH_CHECK(number.is_cpu(), "the wrapped number is on ", number.device());
  return at::empty(t.sizes(), t.options().dtype(at::result_type(t, number)));
}

struct Cube : torch::autograd::Function<Cube> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* ctx,
      const at::Tensor& t) {
    ctx->save_for_backward({t});
    return t * t * t;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      const torch::autograd::variable_list& grads) {
    const auto t = ctx->get_saved_variables()[0];
    return {grads[0] * 3 * t * t};
  }
};
at::Tensor cube_cpu(const at::Tensor& t) {
  return t * t * t;
}
at::Tensor cube_autograd(const at::Tensor& t) {
  return Cube::apply(t);
}

TORCH_LIBRARY(other_library, m) {
  m.def("twice(Tensor t) -> Tensor");
  m.def("cube(Tensor t) -> Tensor");
  m.def("noisy(Tensor t) -> Tensor");
  m.def("above_zero(Tensor t) -> Tensor", {at::Tag::dynamic_output_shape});
  m.def("without_shape(Tensor t) -> Tensor");
  m.def("with_kernel(Tensor t) -> Tensor");
  m.def("refuses(Tensor t) -> Tensor");
  m.def("add_one_(Tensor(a!) t) -> Tensor(a!)");
  m.def("scaled(Tensor t, Tensor number) -> Tensor");
}
TORCH_LIBRARY_IMPL(other_library, CPU, m) {
  m.impl("twice", twice);
  m.impl("cube", cube_cpu);
  m.impl("noisy", noisy);
  m.impl("above_zero", above_zero);
  m.impl("without_shape", twice);
  m.impl("with_kernel", twice);
  m.impl("refuses", refuses);
  m.impl("add_one_", add_one_);
  m.impl("scaled", scaled);
}
TORCH_LIBRARY_IMPL(other_library, Meta, m) {
  m.impl("twice", twice_meta);
  m.impl("refuses", refuses);
  m.impl("cube", twice_meta);
  m.impl("scaled", scaled_meta);
}
TORCH_LIBRARY_IMPL(other_library, AutogradCPU, m) {
  m.impl("cube", cube_autograd);
}

at::Tensor call(const char* name, const at::Tensor& t) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<at::Tensor(const at::Tensor&)>()
      .call(t);
}

// A wrapped number stays on the CPU, and does not determine the dtype.
TEST(OtherLibrary, MetaKernelsGetWrappedNumbersOnTheCpu) {
  register_sharding("other_library::scaled", [](const OpCall&, int64_t) {
    return Strategies{
        {.outputs = {Shard(0)}, .inputs = {Shard(0), Replicate()}}};
  });
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const torch::NoGradGuard no_grad;
    const auto full = numbers({3, 2}, 1).to(at::kHalf);
    const auto scale =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("other_library::scaled", "")
            .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
    for (int warm = 0; warm < 2; ++warm) {
      const auto y = scale.call(
          place(full, mesh, {Shard(0)}),
          at::native::wrapped_scalar_tensor(2.5));
      EXPECT_EQ(DTensor(y).placements()[0], Shard(0));
      EXPECT_EQ(y.scalar_type(), at::kHalf);
      EXPECT_TRUE(same(full * 2.5, DTensor(y).full_tensor()));
    }
  });
}

TEST(OtherLibrary, OperatorsComputeOnReplicatedTensors) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto full = numbers({4, 3}, 1);
    const auto x = leaf(place(full, mesh, {Replicate()}));
    const auto y = call("other_library::cube", x);
    EXPECT_TRUE(same(full * full * full, DTensor(y.detach()).full_tensor()));
    y.sum().backward();
    EXPECT_TRUE(same(full * full * 3, DTensor(x.grad()).full_tensor()));
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(
        same(full * 2, DTensor(call("other_library::twice", x)).full_tensor()));
    const c10::InferenceMode inference;
    EXPECT_TRUE(
        same(full * 2, DTensor(call("other_library::twice", x)).full_tensor()));
  });
}

TEST(OtherLibrary, ShardsAreRefused) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = leaf(place(numbers({4, 3}, 1), mesh, {Shard(0)}));
    EXPECT_EQ(
        error_of([&] { call("other_library::twice", x); }),
        "[other_library::twice] no sharding rule; the operands are f64[4, 3] "
        "on (2): S(0). Redistribute them to Replicate first, or call it on the "
        "local tensors.");
  });
}

// A rule needs the shapes of the results. If values decide the shape, the
// operand is gathered instead.
TEST(OtherLibrary, RulesOfOperatorsWithoutAMetaKernel) {
  OpRule rule;
  rule.dim_rule = [](const OpCall&, int64_t) {
    return Strategies{{.outputs = {Shard(0)}, .inputs = {Shard(0)}}};
  };
  register_sharding("other_library::above_zero", rule);
  register_sharding("other_library::without_shape", rule);
  register_sharding("other_library::refuses", rule);
  // A local kernel needs decided layouts, so the operator itself is called.
  rule.local_kernel = [](const c10::OperatorHandle&,
                         const Decision&,
                         torch::jit::Stack*) { FAIL(); };
  register_sharding("other_library::with_kernel", rule);
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const torch::NoGradGuard no_grad;
    const auto full = numbers({4, 3}, 1);
    for (const Placement& p : {Placement(Shard(0)), Placement(Replicate())}) {
      const auto x = place(full, mesh, {p});
      const auto y = call("other_library::above_zero", x);
      EXPECT_EQ(DTensor(y).placements()[0], Replicate());
      EXPECT_TRUE(same(above_zero(full), DTensor(y).full_tensor()));
    }
    const auto whole = place(full, mesh, {Replicate()});
    EXPECT_TRUE(same(
        full * 2,
        DTensor(call("other_library::without_shape", whole)).full_tensor()));
    EXPECT_TRUE(same(
        full * 2,
        DTensor(call("other_library::with_kernel", whole)).full_tensor()));
    EXPECT_EQ(
        error_of([&] {
          call("other_library::without_shape", place(full, mesh, {Shard(0)}));
        }),
        "[other_library::without_shape] LibTorch cannot infer the shapes of "
        "the results (no meta kernel). Redistribute the operands to Replicate "
        "first.");
    for (const Placement& p : {Placement(Shard(0)), Placement(Replicate())}) {
      EXPECT_EQ(
          error_of(
              [&] { call("other_library::refuses", place(full, mesh, {p})); }),
          "\"refuses\" not implemented for 'Double'");
    }
  });
}

TEST(OtherLibrary, RandomResultsAreRefused) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = leaf(place(numbers({4, 3}, 1), mesh, {Replicate()}));
    EXPECT_EQ(
        error_of([&] { call("other_library::noisy", x); }),
        "[other_library::noisy] draws random numbers on replicated tensors, "
        "which every rank would draw differently. Call it on the local "
        "tensors.");
    const auto text = error_of([&] {
      auto y = x * 2;
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("other_library::add_one_", "")
          .typed<at::Tensor&(at::Tensor&)>()
          .call(y);
    });
    EXPECT_EQ(
        text,
        "[other_library::add_one_] has no gradient on DTensors, since it "
        "writes to or aliases its argument. Call it on the local tensors.");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
