// SPDX-License-Identifier: BSD-3-Clause
// clone() of parallelized modules. The copy has the styles, and tensors of its
// own.
#include <dtensor/parallel/nn_modules.h>
#include <dtensor/parallel/prepare_module.h>
#include <dtensor/parallel/sequence_parallel.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

struct TwiceImpl : torch::nn::Cloneable<TwiceImpl> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& x) {
    return x * 2;
  }
};
DTENSOR_MODULE(Twice);

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() {
    reset();
  }
  void reset() override {
    norm = register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    w1 = register_module("w1", torch::nn::Linear(6, 7));
    w2 = register_module("w2", torch::nn::Linear(7, 6));
    twice = register_module("twice", Twice());
  }
  at::Tensor forward(const at::Tensor& x) {
    return twice(w2(torch::gelu(w1(norm(x)))));
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear w1{nullptr};
  torch::nn::Linear w2{nullptr};
  Twice twice{nullptr};
};
TORCH_MODULE(Net);

ParallelizePlan plan() {
  return {
      {"norm", SequenceParallel()},
      {"w1", ColwiseParallel()},
      {"w2",
       RowwiseParallel(
           {.output_layouts = Shard(1), .use_local_output = false})},
      {"twice",
       PrepareModuleOutput(
           {.output_layouts = {Shard(1)},
            .desired_output_layouts = {Replicate()}})}};
}

template <class Fn>
void on_two_ranks(const Fn& fn) {
  run_ranks(2, [&] { fn(init_device_mesh(at::kCPU, {2}, {"tp"})); });
}

void expect_trains_as_plain(
    Net mine,
    const DeviceMesh& mesh,
    const std::string& what) {
  auto plain = filled(Net());
  const auto x = uniform({2, 4, 6}, 3);
  const auto truth = plain(x);
  const auto y = mine(part(x, mesh, Shard(1)));
  EXPECT_FALSE(is_dtensor(y)) << what;
  expect_close(y, truth, what, 1e-11);
  mine->zero_grad();
  y.sum().backward();
  truth.sum().backward();
  expect_same_gradients(*mine, *plain, what, 1e-10);
}

TEST(CloneTest, KeepsStylesAndGradientLayouts) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto original = filled(Net());
    parallelize_module(*original, mesh, plan());
    const Net copy(std::dynamic_pointer_cast<NetImpl>(original->clone()));
    const Net second(std::dynamic_pointer_cast<NetImpl>(copy->clone()));
    for (const auto& item : copy->named_parameters()) {
      const at::Tensor theirs = original->named_parameters()[item.key()];
      ASSERT_TRUE(is_dtensor(item.value())) << item.key();
      EXPECT_FALSE(item.value().is_same(theirs));
      EXPECT_EQ(layout_of(item.value()), layout_of(theirs));
    }
    expect_trains_as_plain(copy, mesh, "the copy");
    expect_trains_as_plain(second, mesh, "a copy of it");
    const Net third(std::dynamic_pointer_cast<NetImpl>(copy->clone()));
    expect_trains_as_plain(third, mesh, "one made after it ran");
    // A change of the copy does not affect the original.
    const torch::NoGradGuard no_grad;
    copy->w1->weight.zero_();
    const torch::AutoGradMode grad(true);
    expect_trains_as_plain(original, mesh, "the original");
  });
}

TEST(CloneTest, OfAModuleWithHooks) {
  on_two_ranks([](const DeviceMesh& mesh) {
    Twice twice;
    parallelize_module(
        *twice,
        mesh,
        PrepareModuleInput(
            {.input_layouts = {Shard(0)},
             .desired_input_layouts = {Replicate()},
             .use_local_output = true}));
    const auto whole = uniform({4, 2}, 3);
    const auto x = part(whole, mesh, Shard(0));
    const auto copy =
        std::dynamic_pointer_cast<Hooked<TwiceImpl>>(twice->clone());
    ASSERT_NE(copy, nullptr);
    expect_close(copy->forward(x), whole * 2, "by itself");
    torch::nn::Sequential row(twice);
    const auto rows =
        std::dynamic_pointer_cast<torch::nn::SequentialImpl>(row->clone());
    expect_close(rows->forward(x), whole * 2, "in a Sequential");
  });
}

// Each rank has made a clone with hooks of its own.
TEST(CloneTest, AnotherRanksCloneDoesNotGetThisRanksHooks) {
  std::shared_ptr<torch::nn::Module> copies[2];
  std::string text;
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    Net net;
    net->twice->add_forward_hook(
        [rank](const auto& outputs) { *outputs[0] = *outputs[0] + rank; });
    copies[rank] = net->clone();
    get_group(mesh).barrier();
    if (rank == 1) {
      auto& twice = std::dynamic_pointer_cast<NetImpl>(copies[0])->twice;
      text = error_of([&] { twice->forward(at::ones({2})); });
    }
    get_group(mesh).barrier();
  });
  EXPECT_EQ(
      text,
      "[clone] a module with hooks was cloned on another rank. Clone the "
      "module on the rank that calls the clone.");
}

TEST(CloneTest, WithoutHooksNothingChanges) {
  Net copy(std::dynamic_pointer_cast<NetImpl>(filled(Net())->clone()));
  auto plain = filled(Net());
  const auto x = uniform({2, 6}, 3);
  EXPECT_TRUE(at::equal(copy->twice->forward(x), x * 2));
  EXPECT_TRUE(at::equal(
      std::dynamic_pointer_cast<NetImpl>(copy->clone())->forward(x), plain(x)));
}

} // namespace TEST_SOURCE
} // namespace dtensor
