// SPDX-License-Identifier: BSD-3-Clause
// Calls without a mesh or placements, and DTensors constructed from a local
// tensor and a spec.
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/mesh_scope.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/distribute_module.h>
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/random/random.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/factories.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>
#include <torch/torch.h>

#include <map>

namespace dtensor {
namespace TEST_SOURCE {

using test_text::error_of;

constexpr const char* kNoMesh =
    "no mesh was passed and no mesh is current. Pass a mesh from "
    "init_device_mesh, or set the current one with MeshScope.";

TEST(MeshScope, IsTheMeshOfCallsThatNameNone) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const MeshScope scope(mesh);
    EXPECT_EQ(get_current_mesh(), mesh);
    const auto whole = at::arange(6).view({3, 2});
    const auto x = distribute_tensor(whole, {}, {Shard(0)});
    EXPECT_EQ(DTensor(x).device_mesh(), mesh);
    EXPECT_EQ(to_local(x).size(0), rank == 0 ? 2 : 1);
    EXPECT_TRUE(at::equal(full_tensor(x), whole));
    EXPECT_TRUE(DTensor(distribute_tensor(whole)).spec()->is_replicated());
    EXPECT_TRUE(DTensor(DTensor::from_local(whole)).spec()->is_replicated());
    EXPECT_EQ(DTensor(zeros({4})).device_mesh(), mesh);
    EXPECT_EQ(to_local(dtensor::full({4}, 2, {}, {Shard(0)})).numel(), 2);
    EXPECT_EQ(DTensor(dtensor::randn({4})).device_mesh(), mesh);
  });
}

TEST(MeshScope, IsTheMeshOfModules) {
  run_ranks(2, [] {
    const MeshScope scope(init_device_mesh(at::kCPU, {2}, {"tp"}));
    torch::nn::Linear styled(2, 4);
    parallelize_module(*styled, ColwiseParallel());
    EXPECT_EQ(DTensor(styled->weight).placements()[0], Shard(0));
    torch::nn::Sequential planned(torch::nn::Linear(2, 4));
    parallelize_module(*planned, {{"0", RowwiseParallel()}});
    EXPECT_EQ(DTensor(planned->parameters()[0]).placements()[0], Shard(1));
    torch::nn::Linear whole(2, 4);
    distribute_module(*whole);
    EXPECT_TRUE(DTensor(whole->weight).spec()->is_replicated());
  });
}

TEST(MeshScope, TheInnermostCounts) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    {
      const MeshScope outer(mesh);
      {
        const MeshScope inner(mesh["tp"]);
        EXPECT_EQ(get_current_mesh(), mesh["tp"]);
      }
      EXPECT_EQ(get_current_mesh(), mesh);
      EXPECT_EQ(DTensor(zeros({2}, mesh["dp"])).device_mesh(), mesh["dp"]);
    }
    EXPECT_FALSE(get_current_mesh().defined());
  });
}

TEST(MeshScope, BelongsToItsRank) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    std::optional<MeshScope> scope;
    if (rank == 0) {
      scope.emplace(mesh);
    }
    get_group(mesh).barrier();
    EXPECT_EQ(get_current_mesh().defined(), rank == 0);
  });
}

TEST(MeshScope, WithoutOneAMeshIsNeeded) {
  const auto x = at::ones({2});
  torch::nn::Linear linear(2, 2);
  EXPECT_EQ(
      error_of([&] { distribute_tensor(x); }),
      c10::str("[distribute_tensor] ", kNoMesh));
  EXPECT_EQ(
      error_of([&] { DTensor::from_local(x); }),
      c10::str("[from_local] ", kNoMesh));
  EXPECT_EQ(error_of([] { zeros({2}); }), c10::str("[zeros] ", kNoMesh));
  EXPECT_EQ(error_of([] { dtensor::rand({2}); }), c10::str("[rand] ", kNoMesh));
  EXPECT_EQ(
      error_of([&] { parallelize_module(*linear, ColwiseParallel()); }),
      c10::str("[parallelize_module] ", kNoMesh));
  EXPECT_EQ(
      error_of([&] { distribute_module(*linear); }),
      c10::str("[distribute_module] ", kNoMesh));
  EXPECT_EQ(
      error_of([] { const MeshScope scope{DeviceMesh()}; }),
      "[MeshScope] the mesh is undefined. Use init_device_mesh.");
}

TEST(Plans, MayBeMaps) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    torch::nn::Sequential model(
        torch::nn::Linear(2, 4), torch::nn::Linear(4, 2));
    const std::map<std::string, std::shared_ptr<ParallelStyle>> plan = {
        {"0", std::make_shared<ColwiseParallel>()},
        {"1", std::make_shared<RowwiseParallel>()}};
    parallelize_module(*model, mesh, plan);
    EXPECT_EQ(DTensor(model->parameters()[0]).placements()[0], Shard(0));
    EXPECT_EQ(DTensor(model->parameters()[2]).placements()[0], Shard(1));
  });
}

TEST(Plans, WithoutOneTheModuleStaysAsItIs) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    torch::nn::Linear linear(2, 2);
    parallelize_module(*linear, mesh);
    EXPECT_FALSE(is_dtensor(linear->weight));
  });
}

TEST(DTensorOfPart, IsALeafThatSharesMemory) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto spec = Spec::make(mesh, {Shard(0)}, {3, 2}, at::kFloat, "test");
    auto part = at::full({rank == 0 ? 2 : 1, 2}, static_cast<float>(rank));
    const DTensor x(part, spec, /*requires_grad=*/true);
    EXPECT_EQ(x.spec(), spec);
    EXPECT_TRUE(x.is_leaf());
    EXPECT_TRUE(x.requires_grad());
    EXPECT_TRUE(at::equal(
        x.full_tensor().detach(),
        at::tensor({0.F, 0.F, 0.F, 0.F, 1.F, 1.F}).view({3, 2})));
    (x * x).sum().backward();
    EXPECT_TRUE(at::equal(DTensor(x.grad()).to_local(), 2 * part));
    part.fill_(5);
    EXPECT_EQ(x.to_local()[0][0].item<float>(), 5);
    EXPECT_EQ(
        error_of([&] {
          DTensor(at::ones({3, 2}), spec);
        }),
        c10::str(
            "[DTensor] the local tensor has shape [3, 2], but rank ",
            rank,
            " must hold [",
            rank == 0 ? 2 : 1,
            ", 2] of f32[3, 2] on (tp=2): S(0). Pass a local tensor of that "
            "shape (Shard gives the shapes of torch.chunk)."));
    EXPECT_EQ(
        error_of([&] { DTensor(part.to(at::kDouble), spec); }),
        "[DTensor] the local tensor is Double, but the spec is f32[3, 2] on "
        "(tp=2): S(0). Pass a plain tensor of that dtype.");
  });
}

TEST(Helpers, ReplicateAndFullTensor) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto x = at::arange(4.).requires_grad_();
    const auto whole = replicate_tensor(x, mesh);
    EXPECT_TRUE(DTensor(whole).spec()->is_replicated());
    const at::Tensor y = redistribute(whole, {Shard(0)}) * 2;
    const auto back = full_tensor(y);
    EXPECT_FALSE(is_dtensor(back));
    EXPECT_TRUE(at::equal(back.detach(), 2 * x.detach()));
    back.sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::full({4}, 2.)));
    EXPECT_TRUE(full_tensor(x).is_same(x));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
