// SPDX-License-Identifier: BSD-3-Clause
// Operators on ranks outside a mesh return empty results, or throw an error
// that names the reason.
#include "tests/ops/against_plain.h"

#include <dtensor/parallel/linear_styles.h>
#include <dtensor/parallel/style.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

// Runs `fn` on three ranks. Two of them form the mesh.
template <class Fn>
void run(const Fn& fn) {
  run_ranks(3, [&](int64_t rank) {
    const auto mesh = make_device_mesh(at::kCPU, {2}, {0, 2}, {"tp"});
    fn(mesh, rank != 1);
  });
}

void expect_whole(const at::Tensor& t, const at::Tensor& full, bool inside) {
  EXPECT_EQ(t.sizes(), full.sizes());
  const auto mine = DTensor(t).full_tensor();
  if (inside) {
    EXPECT_TRUE(same(mine, full));
  } else {
    EXPECT_EQ(mine.numel(), 0);
  }
}

TEST(OutsideMesh, ListsOfResultsHaveTheirLengths) {
  run([](const DeviceMesh& mesh, bool inside) {
    const auto full = numbers({4, 6}, 1);
    const auto check = [&](const auto& op) {
      const auto x = leaf(distribute_tensor(full, mesh, {Shard(0)}));
      const TensorList truth = op(full);
      const TensorList pieces = op(x);
      ASSERT_EQ(pieces.size(), truth.size());
      for (size_t i = 0; i < truth.size(); ++i) {
        expect_whole(pieces[i].detach(), truth[i], inside);
      }
      (pieces[0] * pieces[1]).sum().backward();
      EXPECT_EQ(x.grad().sizes(), full.sizes());
    };
    check([](const at::Tensor& t) { return t.split(2, 1); });
    check([](const at::Tensor& t) { return t.split_with_sizes({1, 1, 4}, 1); });
    check([](const at::Tensor& t) { return t.chunk(3, 1); });
    check([](const at::Tensor& t) { return t.unbind(1); });
    check([](const at::Tensor& t) { return t.tensor_split(4, 1); });
  });
}

TEST(OutsideMesh, NormsAreNothing) {
  run([](const DeviceMesh& mesh, bool inside) {
    const auto full = numbers({4, 6}, 1);
    const auto x = distribute_tensor(full, mesh, {Shard(0)});
    for (const double order : {1.0, 2.0, double{INFINITY}}) {
      const auto norm = at::norm(x, order);
      EXPECT_EQ(norm.dim(), 0);
      const auto value = DTensor(norm).full_tensor();
      EXPECT_TRUE(
          inside ? at::allclose(value, at::norm(full, order))
                 : value.numel() == 0);
    }
    EXPECT_EQ(
        at::linalg_vector_norm(x, 2, at::IntArrayRef{1}).sizes(),
        at::IntArrayRef({4}));
  });
}

TEST(OutsideMesh, ValuesAreErrorsThatSaySo) {
  run([](const DeviceMesh& mesh, bool inside) {
    const auto x = distribute_tensor(numbers({4, 6}, 1), mesh, {Shard(0)});
    const auto check = [&](const auto& fn) {
      const auto text = error_of(fn);
      const bool says_so =
          text.find("has no value on rank 1, which is outside the mesh") !=
          text.npos;
      EXPECT_EQ(says_so, !inside) << text;
    };
    EXPECT_TRUE(at::equal(x, x));
    EXPECT_FALSE(at::equal(x, x.t()));
    check([&] { at::equal(x, x + 1); });
    check([&] { at::equal(x, x * 1); });
    check([&] { at::allclose(x, x); });
    check([&] { x.sum().item<double>(); });
    check([&] { at::nonzero(x); });
  });
}

TEST(OutsideMesh, EqualityOfOtherTensorsIsAnError) {
  run([](const DeviceMesh& mesh, bool inside) {
    const auto x = distribute_tensor(numbers({4, 6}, 1), mesh, {Shard(0)});
    const auto y = x + 1;
    const auto z = x.clone();
    if (inside) {
      EXPECT_FALSE(at::equal(x, y));
      EXPECT_TRUE(at::equal(x, z));
      return;
    }
    for (const auto& other : {y, z}) {
      EXPECT_EQ(
          error_of([&] { at::equal(x, other); }),
          "[aten::equal] has no value on rank 1, which is outside the mesh "
          "(tp=2). Call it on ranks of the mesh only.");
    }
  });
}

TEST(OutsideMesh, AStyledModuleCanBeCalled) {
  run([](const DeviceMesh& mesh, bool inside) {
    torch::manual_seed(3);
    for (const bool local : {true, false}) {
      torch::nn::Sequential mlp(
          torch::nn::Linear(4, 6), torch::nn::ReLU(), torch::nn::Linear(6, 4));
      auto plain =
          std::dynamic_pointer_cast<torch::nn::SequentialImpl>(mlp->clone());
      parallelize_module(
          *mlp,
          mesh,
          {{"0", ColwiseParallel()},
           {"2", RowwiseParallel({.use_local_output = local})}});
      for (const auto& shape :
           std::vector<std::vector<int64_t>>{{3, 4}, {2, 3, 4}}) {
        const auto x = numbers(shape, 1).to(at::kFloat);
        auto y = mlp->forward(x);
        y.sum().backward();
        if (inside) {
          const auto got = local ? y : DTensor(y).full_tensor();
          EXPECT_TRUE(at::allclose(got, plain->forward(x)));
        }
      }
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
