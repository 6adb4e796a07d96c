// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <tests/ops/operands.h>

namespace dtensor::testing {
namespace TEST_SOURCE {

using Softmax = at::Tensor (*)(const at::Tensor&, int64_t);

at::Tensor softmax(const at::Tensor& x, int64_t dim) {
  return x.softmax(dim);
}
at::Tensor log_softmax(const at::Tensor& x, int64_t dim) {
  return x.log_softmax(dim);
}
at::Tensor safe_softmax(const at::Tensor& x, int64_t dim) {
  return at::_safe_softmax(x, dim);
}

void check(
    const std::string& name,
    Softmax f,
    int64_t dim,
    const Placement& layout,
    const Placement& gradient_layout,
    Failures& failures) {
  const auto mesh = init_device_mesh(at::kCPU, {get_world_size()});
  const auto input = uniform({5, 1, 4}, 1);
  const auto seed = uniform(input.sizes(), 2);
  const auto plain = input.clone().requires_grad_();
  const auto placed = place(input, mesh, layout).detach().requires_grad_();
  const auto expected = f(plain, dim);
  const auto result = f(placed, dim);
  const auto wanted = torch::autograd::grad({expected}, {plain}, {seed})[0];
  const auto got = torch::autograd::grad(
      {result}, {placed}, {place(seed, mesh, gradient_layout)})[0];
  const auto where = name + " " + std::to_string(dim) + " " +
      to_string(layout) + " " + to_string(gradient_layout);
  if (!close(full(result.detach()), expected.detach())) {
    failures.add(where + ": forward differs");
  }
  if (!close(full(got), wanted)) {
    failures.add(where + ": gradient differs");
  }
}

TEST(Softmax, EveryDimensionInEveryLayoutForwardAndBackward) {
  const std::vector<Placement> layouts = {
      Shard(0), Shard(1), Shard(2), Replicate(), Partial()};
  Failures failures;
  for (const int64_t ranks : {2, 3}) {
    run_ranks(ranks, [&] {
      for (const int64_t dim : {0, 1, 2, -1}) {
        for (const auto& a : layouts) {
          for (const auto& b : layouts) {
            check("softmax", softmax, dim, a, b, failures);
            check("log_softmax", log_softmax, dim, a, b, failures);
            check("_safe_softmax", safe_softmax, dim, a, b, failures);
          }
        }
      }
    });
  }
  EXPECT_EQ(failures.text(), "");
}

TEST(Softmax, OtherDimensionsStayShardedAndThePartialGradientPartial) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(uniform({5, 4}, 1), mesh, Shard(0));
    EXPECT_EQ(DTensor(x.softmax(1)).placements()[0], Shard(0));
    EXPECT_EQ(DTensor(x.softmax(0)).placements()[0], Shard(1));
    const auto y = place(uniform({5, 4}, 1), mesh, Replicate());
    const auto g = place(uniform({5, 4}, 2), mesh, Partial());
    const auto dx = at::_softmax_backward_data(g, y, 1, at::kDouble);
    EXPECT_EQ(DTensor(dx).placements()[0], Partial());
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
