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

TEST(OutsideMesh, ResultsAreNothing) {
  using Op = at::Tensor (*)(const at::Tensor&);
  const std::vector<std::pair<std::string, Op>> ops = {
      {"tril", [](const at::Tensor& t) { return t.tril(1); }},
      {"triu", [](const at::Tensor& t) { return t.triu(-1); }},
      {"max", [](const at::Tensor& t) { return std::get<0>(t.max(0)); }},
      {"argmax", [](const at::Tensor& t) { return t.argmax(0); }},
      {"sort", [](const at::Tensor& t) { return std::get<0>(t.sort(0)); }},
      {"median", [](const at::Tensor& t) { return t.median(); }},
      {"median along a dim",
       [](const at::Tensor& t) { return std::get<0>(t.median(0)); }},
      {"kthvalue",
       [](const at::Tensor& t) { return std::get<0>(t.kthvalue(2, 0)); }},
      {"cummax", [](const at::Tensor& t) { return std::get<0>(t.cummax(0)); }},
      {"var", [](const at::Tensor& t) { return t.var(0); }},
      {"logsumexp", [](const at::Tensor& t) { return t.logsumexp(0); }},
      {"softmax", [](const at::Tensor& t) { return t.softmax(0); }},
      {"safe softmax",
       [](const at::Tensor& t) { return at::_safe_softmax(t, 0); }},
      {"as_strided",
       [](const at::Tensor& t) {
         return t.as_strided({2, 3}, {6, 1}, 1);
       }},
      {"multinomial of one class",
       [](const at::Tensor& t) {
         return at::multinomial(t.narrow(1, 0, 1).abs() + 1, 3, true);
       }},
      {"sum filled with a number",
       [](const at::Tensor& t) {
         auto sum = t.sum(0);
         return sum.fill_(at::full({}, 2.0, at::kDouble));
       }},
  };
  run([&](const DeviceMesh& mesh, bool inside) {
    const auto full = numbers({4, 6}, 1);
    const auto x = distribute_tensor(full, mesh, {Shard(0)});
    for (const auto& [name, op] : ops) {
      SCOPED_TRACE(name);
      const auto got = DTensor(op(x)).full_tensor();
      const auto expected = op(full);
      EXPECT_EQ(op(x).sizes(), expected.sizes());
      EXPECT_TRUE(inside ? at::allclose(got, expected) : got.numel() == 0)
          << got;
    }
    auto strided = distribute_tensor(full, mesh, {Replicate()});
    strided.as_strided_({2, 3}, {6, 1}, 1);
    expect_whole(strided, full.as_strided({2, 3}, {6, 1}, 1), inside);
  });
}

TEST(OutsideMesh, ALossIsNothing) {
  run([](const DeviceMesh& mesh, bool inside) {
    const auto full = numbers({4, 6}, 1);
    const auto target = at::tensor({0, 5, 2, 3}, at::kLong);
    const auto x = leaf(distribute_tensor(full, mesh, {Shard(1)}));
    const LossParallel scope;
    const auto loss = at::cross_entropy_loss(
        x, distribute_tensor(target, mesh, {Replicate()}));
    const auto value = DTensor(loss).full_tensor();
    EXPECT_EQ(loss.dim(), 0);
    EXPECT_TRUE(
        inside ? at::allclose(value, at::cross_entropy_loss(full, target))
               : value.numel() == 0);
  });
}

TEST(OutsideMesh, GradientsAreNotAveraged) {
  run([](const DeviceMesh& mesh, bool inside) {
    auto parameter = at::ones({2}, at::kDouble).requires_grad_();
    parameter.mutable_grad() =
        at::full({2}, static_cast<double>(get_rank()), at::kDouble);
    average_gradients({parameter}, mesh);
    // The mean of ranks 0 and 2, or the gradient of rank 1 itself.
    EXPECT_TRUE(same(parameter.grad(), at::ones({2}, at::kDouble))) << inside;
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
