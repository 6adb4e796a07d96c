// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/comm_debug_mode.h>
#include <gtest/gtest.h>
#include <tests/ops/operands.h>

#include <functional>
#include <limits>

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

// Softmax and similar operators along a sharded dimension.

constexpr double kInf = std::numeric_limits<double>::infinity();

// Makes a mesh on which collectives cost little beside their bytes, so that
// even small tensors are computed on shards.
DeviceMesh mesh_of_slow_bytes(const std::vector<int64_t>& shape) {
  MeshOptions options;
  for (size_t i = 0; i < shape.size(); ++i) {
    options.cost[std::to_string(i)] = {
        .latency_us = 1e-6, .gigabytes_per_s = 1};
  }
  return init_device_mesh(at::kCPU, shape, {}, options);
}

// Returns numbers with rows of -inf, and rows in which single elements are not
// finite.
at::Tensor with_hard_rows(int64_t columns, at::ScalarType dtype) {
  auto x = (uniform({7, columns}, 5) - 0.5) * 8;
  x[0].fill_(-kInf);
  x[1].fill_(-kInf)[columns - 1] = 2;
  x[2].fill_(-kInf)[0] = -1000;
  x[3][columns / 2] = std::nan("");
  x[4][columns - 1] = kInf;
  x[5].add_(dtype == at::kDouble || dtype == at::kFloat ? 1000 : 10);
  return x.to(dtype);
}

double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-13
      : dtype == at::kFloat   ? 1e-6
      : dtype == at::kHalf    ? 1e-3
                              : 1e-2;
}

using Function = std::function<at::Tensor(const at::Tensor&)>;

// Compares value, gradient and second derivative with those of the full tensor.
// In 16 bits, the second derivative of the plain operator itself is inaccurate.
void expect_same(
    const std::string& what,
    const Function& f,
    const at::Tensor& x,
    const DeviceMesh& mesh,
    const Placements& layout,
    Failures& failures) {
  const auto derivatives = [&](const at::Tensor& leaf,
                               const std::function<at::Tensor(at::Tensor)>& d) {
    const auto y = f(leaf);
    const auto seed = d(uniform(y.sizes(), 8).to(y.scalar_type()));
    const auto g = torch::autograd::grad(
        {y}, {leaf}, {seed}, std::nullopt, /*create_graph=*/true)[0];
    const auto h = torch::autograd::grad({g.square().sum()}, {leaf})[0];
    return std::vector<at::Tensor>{y, g, h};
  };
  const auto same = [](const at::Tensor& t) { return t; };
  const auto wanted = derivatives(x.detach().clone().requires_grad_(), same);
  const auto placed = distribute_tensor(x, mesh, layout, std::nullopt);
  const auto got =
      derivatives(placed.detach().requires_grad_(), [&](const at::Tensor& t) {
        return distribute_tensor(
            t, mesh, Placements(layout.size(), Replicate()), std::nullopt);
      });
  const double epsilon = tolerance(x.scalar_type());
  const size_t count = epsilon < 1e-5 ? 3 : 2;
  for (size_t i = 0; i < count; ++i) {
    const auto result = full(got[i].detach());
    const auto near = result.scalar_type() == wanted[i].scalar_type() &&
        result.sizes() == wanted[i].sizes() &&
        at::allclose(result.to(at::kDouble),
                     wanted[i].detach().to(at::kDouble),
                     epsilon * (i == 0 ? 1 : 20),
                     epsilon * (i == 0 ? 1 : 20),
                     /*equal_nan=*/true);
    if (!near) {
      failures.add(
          what + " " + to_string(*DTensor(placed).spec()) + " derivative " +
          std::to_string(i));
    }
  }
}

const std::vector<std::pair<std::string, Function>>& along_last() {
  using T = const at::Tensor&;
  static const std::vector<std::pair<std::string, Function>> all = {
      {"softmax", [](T x) { return x.softmax(-1); }},
      {"log_softmax", [](T x) { return x.log_softmax(-1); }},
      {"_safe_softmax", [](T x) { return at::_safe_softmax(x, -1); }},
      {"logsumexp", [](T x) { return x.logsumexp(-1); }},
      {"logsumexp keepdim", [](T x) { return x.logsumexp(-1, true); }}};
  return all;
}

TEST(SoftmaxOnShards, IsThatOfTheFullTensor) {
  Failures failures;
  for (const int64_t ranks : {1, 2, 3, 5}) {
    run_ranks(ranks, [&] {
      const auto mesh = mesh_of_slow_bytes({ranks});
      for (const auto dtype :
           {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
        for (const int64_t columns : {7, 16, 41}) {
          for (const auto& p :
               {Shard(1), Shard(1, 2), StridedShard(1, 2), Shard(0)}) {
            for (const auto& [name, f] : along_last()) {
              const auto x = with_hard_rows(columns, dtype);
              expect_same(name, f, x, mesh, {p}, failures);
            }
          }
        }
      }
    });
  }
  EXPECT_EQ(failures.text(), "");
}

TEST(SoftmaxOnShards, OnTwoMeshDimensions) {
  Failures failures;
  run_ranks(4, [&] {
    const auto mesh = mesh_of_slow_bytes({2, 2});
    for (const auto& layout : std::vector<Placements>{
             {Shard(1), Shard(1)},
             {Shard(1), Shard(0)},
             {Shard(0), Shard(1)},
             {StridedShard(1, 2), Shard(1)},
             {Replicate(), Shard(1)},
             {Shard(0), Shard(0)}}) {
      for (const auto& [name, f] : along_last()) {
        const auto x = with_hard_rows(27, at::kDouble);
        expect_same(name, f, x, mesh, layout, failures);
        // Columns of a transposed tensor are far apart in memory.
        expect_same(
            name + " of a transposed tensor",
            f,
            with_hard_rows(27, at::kDouble).t().contiguous().t(),
            mesh,
            layout,
            failures);
      }
      const auto cube = uniform({6, 9, 4}, 3);
      expect_same(
          "softmax(1)",
          [](const at::Tensor& x) { return x.softmax(1); },
          cube,
          mesh,
          layout,
          failures);
      expect_same(
          "logsumexp({0, 1})",
          [](const at::Tensor& x) {
            return x.logsumexp(at::IntArrayRef{0, 1});
          },
          cube,
          mesh,
          layout,
          failures);
    }
  });
  EXPECT_EQ(failures.text(), "");
}

TEST(SoftmaxOnShards, ResultsKeepLayoutAndMemoryOrder) {
  run_ranks(2, [] {
    const auto mesh = mesh_of_slow_bytes({2});
    const auto x = uniform({40, 6}, 1).t();
    const auto d = distribute_tensor(x, mesh, {Shard(1)}, std::nullopt);
    const DTensor y(d.softmax(1));
    EXPECT_EQ(y.placements()[0], Shard(1));
    EXPECT_EQ(y.spec()->strides(), SizesRef(x.softmax(1).strides()));
    EXPECT_TRUE(to_local(y).is_contiguous());
  });
}

TEST(SoftmaxOnShards, IntegersAndScalars) {
  run_ranks(2, [] {
    const auto mesh = mesh_of_slow_bytes({2});
    const auto x = small_ints({3, 50}, 1);
    const auto d = distribute_tensor(x, mesh, {Shard(1)}, std::nullopt);
    EXPECT_TRUE(at::allclose(full(d.logsumexp(1)), x.logsumexp(1)));
    EXPECT_TRUE(at::allclose(
        full(d.softmax(1, at::kDouble)), x.softmax(1, at::kDouble)));
    const auto one = at::tensor(2.0);
    const auto r = distribute_tensor(one, mesh, {Replicate()}, std::nullopt);
    EXPECT_TRUE(at::equal(full(r.softmax(0)), one.softmax(0)));
    EXPECT_TRUE(at::equal(full(r.logsumexp(0)), one.logsumexp(0)));
    const auto half = x.to(at::kHalf);
    const auto h = distribute_tensor(half, mesh, {Shard(1)}, std::nullopt);
    EXPECT_THROW(at::_softmax(half, 1, /*half_to_float=*/true), c10::Error);
    EXPECT_THROW(at::_softmax(h, 1, /*half_to_float=*/true), c10::Error);
  });
}

// A sum of 140,000 ones is infinite in Half. (The plain log_softmax adds in 16
// bits on some CPUs.)
TEST(SoftmaxOnShards, AddsNumbersOf16BitsIn32) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = at::zeros({140000}, at::kHalf);
    const auto d = distribute_tensor(x, mesh, {Shard(0)}, std::nullopt);
    EXPECT_TRUE(at::equal(full(d.softmax(0)), x.softmax(0)));
    EXPECT_TRUE(at::equal(
        full(d.log_softmax(0)), x.to(at::kFloat).log_softmax(0).to(at::kHalf)));
    EXPECT_NEAR(full(d.logsumexp(0)).item<double>(), std::log(140000.), 5e-3);
  });
}

void expect_collectives(
    CollectiveKind kind,
    int64_t count,
    int64_t bytes,
    const std::function<void()>& fn) {
  const CommDebugMode comm;
  fn();
  EXPECT_EQ(comm.get_total_counts(), count);
  EXPECT_EQ(comm.get_comm_counts()[kind], count);
  EXPECT_EQ(comm.total().payload_bytes, bytes);
}

// Ranks exchange two numbers of each row forward, and one backward.
TEST(SoftmaxOnShards, ExchangesStatisticsOfRows) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {4});
    const auto plain = uniform({32, 2048}, 1);
    const auto seed = distribute_tensor(plain, mesh, {Shard(1)}, std::nullopt);
    for (const auto f : {softmax, log_softmax, safe_softmax}) {
      const auto x = seed.detach().requires_grad_();
      at::Tensor y;
      expect_collectives(
          CollectiveKind::kAllReduce, 2, 2 * 32 * 8, [&] { y = f(x, 1); });
      EXPECT_EQ(DTensor(y).placements()[0], Shard(1));
      at::Tensor g;
      expect_collectives(CollectiveKind::kAllReduce, 1, 32 * 8, [&] {
        g = torch::autograd::grad({y}, {x}, {seed})[0];
      });
      EXPECT_EQ(DTensor(g).placements()[0], Shard(1));
    }
    expect_collectives(CollectiveKind::kAllGather, 1, 32 * 8, [&] {
      EXPECT_EQ(DTensor(seed.logsumexp(1)).placements()[0], Replicate());
    });
    expect_collectives(CollectiveKind::kAllGather, 1, 8, [&] {
      seed.logsumexp(at::IntArrayRef{0, 1});
    });
  });
}

// Small shards are cheaper to move: one collective instead of two.
TEST(SoftmaxOnShards, MovesShardsWhereThatIsFaster) {
  run_ranks(2, [] {
    const auto softmax_layout = [](const DeviceMesh& mesh) {
      const auto d = distribute_tensor(
          uniform({8, 32}, 1), mesh, {Shard(1)}, std::nullopt);
      return DTensor(d.softmax(1)).placements()[0];
    };
    const auto mesh = init_device_mesh(at::kCPU, {2});
    EXPECT_EQ(softmax_layout(mesh), Shard(0));
    EXPECT_EQ(softmax_layout(mesh_of_slow_bytes({2})), Shard(1));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
