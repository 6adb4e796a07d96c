// SPDX-License-Identifier: BSD-3-Clause
// LibTorch errors inside the forward of a styled module name the module, its
// style and its layouts.
#include <dtensor/parallel/module_hooks.h>
#include <dtensor/parallel/prepare_module.h>
#include <dtensor/parallel/sequence_parallel.h>
#include <tests/parallel/modules.h>

#include <sstream>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

struct HeadsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return q(x).view({x.size(0), x.size(1), 4, 4});
  }
  torch::nn::Linear q = register_module("q", torch::nn::Linear(16, 16));
};
DTENSOR_MODULE(Heads);

struct LayerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return heads(x);
  }
  Heads heads = register_module("heads", Heads());
};
DTENSOR_MODULE(Layer);

TEST(NamedErrors, OfAProductNameTheLinearAndItsStyle) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    Mlp mlp(4, 8);
    parallelize_module(*mlp, mesh, mlp_plan());
    const at::Tensor x =
        distribute_tensor(at::ones({3, 5}), mesh, {Replicate()});
    const auto text = error_of([&] { mlp->w1(x); });
    EXPECT_THAT(
        text,
        EndsWith(
            "(in module \"w1\" (ColwiseParallel: weight S(0), input R, output "
            "S(-1)))"));
  });
}

// The view is of a plain tensor with this rank's half of the heads.
TEST(NamedErrors, OfAViewNameTheInnermostModuleOnce) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    torch::nn::Sequential model(Layer{});
    parallelize_module(
        *model,
        mesh,
        {{"0.heads.q", ColwiseParallel()},
         {"0",
          PrepareModuleInput(
              {.input_layouts = {Replicate()},
               .desired_input_layouts = {Replicate()},
               .use_local_output = true})}});
    const auto text = error_of([&] { model->forward(at::ones({2, 3, 16})); });
    EXPECT_THAT(text, HasSubstr("shape '[2, 3, 4, 4]' is invalid"));
    EXPECT_THAT(text, EndsWith(" (in module \"0.heads\")"));
  });
}

TEST(NamedErrors, OfAStyledModuleSayItsLayouts) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    torch::nn::Sequential model(Heads{});
    parallelize_module(
        *model,
        mesh,
        {{"0",
          PrepareModuleInput(
              {.input_layouts = {Shard(1)},
               .desired_input_layouts = {Replicate()},
               .use_local_output = true})}});
    const auto text = error_of([&] { model->forward(at::ones({2, 3, 7})); });
    EXPECT_THAT(
        text,
        EndsWith(" (in module \"0\" (PrepareModuleInput: inputs S(1) -> R))"));
  });
}

struct ThrowsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    TORCH_CHECK_INDEX(x.dim() != 1, "of one dimension");
    TORCH_CHECK_NOT_IMPLEMENTED(x.dim() != 2, "of two dimensions");
    TORCH_CHECK(x.dim() != 3, "[ours] of three dimensions.");
    return x;
  }
};
DTENSOR_MODULE(Throws);

TEST(NamedErrors, KeepTheirType) {
  run_ranks(1, [] {
    const auto mesh = init_device_mesh(at::kCPU, {1}, {"tp"});
    Throws module;
    parallelize_module(*module, mesh, SequenceParallel({.sequence_dim = 0}));
    EXPECT_THAT(
        [&] { module(at::ones({1})); },
        ::testing::ThrowsMessage<c10::IndexError>(HasSubstr(
            "of one dimension (in the root module (SequenceParallel: input and "
            "output S(0)))")));
    EXPECT_THAT(
        [&] {
          module(at::ones({1, 1}));
        },
        ::testing::ThrowsMessage<c10::NotImplementedError>(
            HasSubstr("of two dimensions (in the root module")));
    EXPECT_EQ(
        error_of([&] {
          module(at::ones({1, 1, 1}));
        }),
        "[ours] of three dimensions.");
  });
}

// Three heads of four features on two ranks.
TEST(NamedErrors, OfHeadsThatDoNotDivideNameMultipleOf) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto q = filled(torch::nn::Linear(4, 12));
    parallelize_module(*q, mesh, ColwiseParallel({.use_local_output = false}));
    const auto x = uniform({2, 5, 4}, 1);
    EXPECT_THAT(
        error_of([&] {
          q(x).view({2, 5, 3, 4});
        }),
        HasSubstr(
            "If the dim contains heads, shard between heads: set "
            "`multiple_of` of ColwiseParallel to the features of a head."));
    auto whole = filled(torch::nn::Linear(4, 12));
    parallelize_module(
        *whole,
        mesh,
        ColwiseParallel({.use_local_output = false, .multiple_of = 4}));
    EXPECT_EQ(whole(x).view({2, 5, 3, 4}).size(2), 3);
  });
}

TEST(NamedErrors, OfWhatLibTorchCannotDoNameTheReplacement) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto mlp = filled(Mlp(4, 8));
    parallelize_module(*mlp, mesh, {{"w1", ColwiseParallel()}});
    std::ostringstream out;
    const auto save = error_of([&] { torch::save(mlp, out); });
    EXPECT_THAT(save, HasSubstr("save_checkpoint"));
    EXPECT_THAT(save, HasSubstr("get_model_state_dict"));
    for (const auto& parameter : mlp->parameters()) {
      at::Tensor grad = parameter.detach().clone();
      parameter.mutable_grad() = grad;
    }
    EXPECT_THAT(
        error_of(
            [&] { torch::nn::utils::clip_grad_norm_(mlp->parameters(), 0.1); }),
        HasSubstr("dtensor::clip_grad_norm_"));
  });
}

TEST(NamedErrors, OfPlainOperandsNameTheWaysOut) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    at::Tensor y = distribute_tensor(at::ones({4}), mesh, {Shard(0)});
    const auto text = error_of([&] { y += at::ones({4}); });
    EXPECT_THAT(text, HasSubstr("distribute_module"));
    EXPECT_THAT(text, HasSubstr("implicit_replication()"));
    EXPECT_THAT(text, Not(HasSubstr("set_model_state_dict")));
    EXPECT_THAT(
        error_of([&] { y.copy_(at::ones({4})); }),
        HasSubstr("set_model_state_dict"));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
