// SPDX-License-Identifier: BSD-3-Clause
// Reductions, norms, scans and plain values in every layout, in forward and
// backward pass, give the plain operators' results on full tensors.
#include <dtensor/debug/comm_debug_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ops/operands.h>
#include <tests/torch_version.h>

#include <functional>
#include <limits>

namespace dtensor::testing {
namespace TEST_SOURCE {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Function {
  std::string name;
  std::function<std::vector<at::Tensor>(const at::Tensor&)> call;
  bool differentiable = true;
};

template <class F>
Function one(std::string name, F f, bool differentiable = true) {
  return {
      std::move(name),
      [f](const at::Tensor& x) { return std::vector<at::Tensor>{f(x)}; },
      differentiable};
}

template <class F>
Function two(std::string name, F f, bool differentiable = true) {
  return {
      std::move(name),
      [f](const at::Tensor& x) {
        const auto [a, b] = f(x);
        return std::vector<at::Tensor>{a, b};
      },
      differentiable};
}

// Adds every overload over one dimension, with and without keepdim.
template <class F>
void each_dim(std::vector<Function>& all, const std::string& name, F f) {
  for (const int64_t dim : {0, 1, -1}) {
    for (const bool keepdim : {false, true}) {
      all.push_back(
          two(name + "(" + std::to_string(dim) + ", " +
                  std::to_string(keepdim) + ")",
              [=](const at::Tensor& x) {
                const auto result = f(x, dim, keepdim);
                if constexpr (std::is_same_v<
                                  decltype(f(x, dim, keepdim)),
                                  at::Tensor>) {
                  return std::tuple(result, result);
                } else {
                  return result;
                }
              }));
    }
  }
}

std::vector<Function> sums_and_extremes() {
  using T = const at::Tensor&;
  std::vector<Function> all = {
      one("sum", [](T x) { return x.sum(); }),
      one("sum all kept",
          [](T x) {
            return x.sum(at::IntArrayRef({0, 1}), true);
          }),
      one(
          "sum f32",
          [](T x) { return x.sum(at::kFloat).to(at::kHalf); },
          false),
      one(
          "sum bool", [](T x) { return (x > 0.5).sum(); }, false),
      one("nansum", [](T x) { return x.nansum(); }),
      one(
          "nansum of nan",
          [](T x) {
            return at::where(x > 0.5, x, at::full_like(x, std::nan("")))
                .nansum(0);
          },
          false),
      one("mean", [](T x) { return x.mean(); }),
      one("mean all kept",
          [](T x) {
            return x.mean(at::IntArrayRef({0, 1}), true);
          }),
      one(
          "mean f32",
          [](T x) { return x.mean(at::kFloat).to(at::kHalf); },
          false),
      one("prod", [](T x) { return x.prod(); }),
      one("max", [](T x) { return x.max(); }),
      one("min", [](T x) { return x.min(); }),
      one("amax all", [](T x) { return x.amax(); }),
      one("amin all", [](T x) { return x.amin(); }),
      one(
          "max long", [](T x) { return (x * 100).to(at::kLong).max(); }, false),
      one(
          "min int", [](T x) { return (x * 100).to(at::kInt).min(); }, false),
      one(
          "all", [](T x) { return (x > 0.2).all(); }, false),
      one(
          "any", [](T x) { return (x > 0.8).any(); }, false),
      one(
          "any float", [](T x) { return (x - 0.5).any(); }, false),
      one(
          "all dim", [](T x) { return (x > 0.2).all(0); }, false),
      one(
          "any dim", [](T x) { return (x > 0.8).any(1, true); }, false),
      one(
          "any no dims",
          [](T x) {
            return (x > 0.8).any(at::OptionalIntArrayRef(at::IntArrayRef{}));
          },
          false),
      one(
          "all dims",
          [](T x) {
            return (x > 0.2).all(at::IntArrayRef{0, 1});
          },
          false),
      one(
          "count_nonzero",
          [](T x) { return (x > 0.5).count_nonzero(); },
          false),
      one(
          "count_nonzero dim",
          [](T x) { return x.count_nonzero(at::IntArrayRef{0}); },
          false)};
  each_dim(all, "sum", [](T x, int64_t d, bool k) { return x.sum(d, k); });
  each_dim(all, "mean", [](T x, int64_t d, bool k) { return x.mean(d, k); });
  each_dim(all, "prod", [](T x, int64_t d, bool k) { return x.prod(d, k); });
  each_dim(all, "amax", [](T x, int64_t d, bool k) { return x.amax(d, k); });
  each_dim(all, "amin", [](T x, int64_t d, bool k) { return x.amin(d, k); });
  return all;
}

std::vector<Function> whole_reductions() {
  using T = const at::Tensor&;
  std::vector<Function> all = {
      one("median", [](T x) { return x.median(); }),
      one(
          "argmax", [](T x) { return x.argmax(); }, false),
      one(
          "argmin dim", [](T x) { return x.argmin(1, true); }, false),
      one("var", [](T x) { return x.var(); }),
      one("std", [](T x) { return x.std(); }),
      one("var biased", [](T x) { return x.var(false); }),
      two("var_mean", [](T x) { return at::var_mean(x); }),
      one("logsumexp all",
          [](T x) {
            return x.logsumexp(at::IntArrayRef({0, 1}));
          }),
      two(
          "aminmax", [](T x) { return x.aminmax(); }, kAminmaxHasGradient)};
  each_dim(all, "max", [](T x, int64_t d, bool k) { return x.max(d, k); });
  each_dim(all, "min", [](T x, int64_t d, bool k) { return x.min(d, k); });
  each_dim(
      all, "median", [](T x, int64_t d, bool k) { return x.median(d, k); });
  each_dim(all, "mode", [](T x, int64_t d, bool k) { return x.mode(d, k); });
  each_dim(all, "kthvalue", [](T x, int64_t d, bool k) {
    return x.kthvalue(1, d, k);
  });
  each_dim(all, "quantile", [](T x, int64_t d, bool k) {
    return at::quantile(x, 0.3, d, k);
  });
  each_dim(
      all, "var", [](T x, int64_t d, bool k) { return x.var(d, false, k); });
  each_dim(
      all, "std", [](T x, int64_t d, bool k) { return x.std(d, false, k); });
  each_dim(all, "logsumexp", [](T x, int64_t d, bool k) {
    return x.logsumexp(d, k);
  });
  return all;
}

std::vector<Function> quantiles() {
  using T = const at::Tensor&;
  const auto with_nan = [](T x) {
    return at::where(x > 0.5, x, at::full_like(x, std::nan("")));
  };
  return {
      one("quantile", [](T x) { return at::quantile(x, 0.3); }),
      one("quantile nearest",
          [](T x) { return at::quantile(x, 0.3, 1, false, "nearest"); }),
      one(
          "quantile out",
          [](T x) {
            auto out = at::empty_like(x.select(1, 0));
            return at::quantile_out(out, x.detach(), 0.3, 1);
          },
          false),
      one(
          "nanquantile",
          [=](T x) { return at::nanquantile(with_nan(x), 0.3, 0); },
          false),
      // The gradient reaches the quantiles, too.
      one("quantiles in a tensor",
          [](T x) { return at::quantile(x, x.select(1, 0).sigmoid(), 1); }),
      one("quantiles in a tensor, kept",
          [](T x) {
            return at::quantile(x, x.select(1, 0).sigmoid(), 0, true);
          }),
      one("one quantile in a tensor",
          [](T x) { return at::nanquantile(x, x.mean().sigmoid(), 1); })};
}

std::vector<Function> norms() {
  using T = const at::Tensor&;
  std::vector<Function> all;
  // The number of nonzero elements has no gradient.
  all.push_back(one(
      "norm 0", [](T x) { return x.norm(0); }, false));
  all.push_back(one(
      "norm dim 0", [](T x) { return x.norm(0, 0); }, false));
  for (const double p : {0.5, 1.0, 2.0, 3.0, -1.0, kInf, -kInf}) {
    const auto text = std::to_string(p);
    all.push_back(one("norm " + text, [p](T x) { return x.norm(p); }));
    all.push_back(one("vector_norm " + text, [p](T x) {
      return at::linalg_vector_norm(x, p);
    }));
    all.push_back(one("norm dim " + text, [p](T x) { return x.norm(p, 0); }));
    all.push_back(one("vector_norm kept " + text, [p](T x) {
      return at::linalg_vector_norm(x, p, 1, true);
    }));
  }
  all.push_back(one(
      "norm f32",
      [](T x) {
        return x.to(at::kFloat)
            .norm(2, at::kDouble)
            .to(at::kFloat)
            .to(at::kHalf);
      },
      false));
  return all;
}

std::vector<Function> scans() {
  using T = const at::Tensor&;
  std::vector<Function> all;
  for (const int64_t d : {0, 1}) {
    const auto text = " " + std::to_string(d);
    all.push_back(one("cumsum" + text, [d](T x) { return x.cumsum(d); }));
    all.push_back(one("cumprod" + text, [d](T x) { return x.cumprod(d); }));
    all.push_back(
        one("logcumsumexp" + text, [d](T x) { return x.logcumsumexp(d); }));
    all.push_back(two("cummax" + text, [d](T x) { return x.cummax(d); }));
    all.push_back(two("sort" + text, [d](T x) { return x.sort(d); }));
    all.push_back(two("topk" + text, [d](T x) { return x.topk(1, d); }));
    all.push_back(one(
        "argsort" + text, [d](T x) { return x.argsort(d); }, false));
  }
  for (const int64_t k : {-2, -1, 0, 1, 2}) {
    const auto text = " " + std::to_string(k);
    all.push_back(one("tril" + text, [k](T x) { return x.tril(k); }));
    all.push_back(one("triu" + text, [k](T x) { return x.triu(k); }));
  }
  return all;
}

const std::vector<Placement> kLayouts = {
    Shard(0),
    Shard(1),
    Replicate(),
    Partial(),
    Partial(ReduceOp::kAvg),
    Partial(ReduceOp::kMax)};

at::Tensor first_float(const std::vector<at::Tensor>& results) {
  return results[0];
}

void check(
    const Function& f,
    const at::Tensor& full_input,
    const Placement& layout,
    const DeviceMesh& mesh,
    Failures& failures) {
  const auto where = f.name + " " + to_string(layout);
  auto plain = full_input.clone();
  plain.set_requires_grad(f.differentiable);
  const auto expected = f.call(plain);
  auto input = place(full_input, mesh, layout).detach();
  input.set_requires_grad(f.differentiable);
  const auto results = f.call(input);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!close(full(results[i].detach()), expected[i].detach())) {
      failures.add(where + ": result " + std::to_string(i) + " differs");
    }
  }
  if (!f.differentiable) {
    return;
  }
  const auto seed = uniform(expected[0].sizes(), 5);
  const auto wanted =
      torch::autograd::grad({first_float(expected)}, {plain}, {seed})[0];
  const auto got = torch::autograd::grad(
      {first_float(results)}, {input}, {place(seed, mesh, Replicate())})[0];
  if (!close(full(got), wanted)) {
    failures.add(where + ": gradient differs");
  }
}

void check_all(const std::vector<Function>& functions) {
  Failures failures;
  for (const int64_t ranks : {2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      for (const auto& sizes :
           std::vector<std::vector<int64_t>>{{5, 3}, {1, 4}}) {
        const auto input = uniform(sizes, 3);
        for (const auto& f : functions) {
          for (const auto& layout : kLayouts) {
            try {
              check(f, input, layout, mesh, failures);
            } catch (const std::exception& e) {
              failures.add(
                  f.name + " " + to_string(layout) + ": " + first_line(e));
            }
          }
        }
      }
    });
  }
  EXPECT_EQ(failures.text(), "");
}

TEST(Reduction, SumsAndExtremesMatchTheFullTensor) {
  check_all(sums_and_extremes());
}

TEST(Reduction, ReductionsThatDoNotComposeRunOnUnshardedDimensions) {
  check_all(whole_reductions());
}

TEST(Reduction, QuantilesMatchTheFullTensor) {
  check_all(quantiles());
}

TEST(Reduction, QuantilesKeepTheShardsOfOtherDimensions) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto plain = uniform({2, 5}, 1);
    const auto x = place(plain, mesh, Shard(0)); // the last rank has no row
    const auto q = place(at::tensor({0.2, 0.7}), mesh, Replicate());
    const auto layout = [](const at::Tensor& t) {
      return DTensor(t).placements()[0];
    };
    const ExplicitRedistributionContext no_communication;
    EXPECT_EQ(layout(at::quantile(x, 0.5, 1)), Shard(0));
    EXPECT_EQ(layout(at::quantile(x, q, 1)), Shard(1));
    const auto kept = at::nanquantile(x, q, -1, /*keepdim=*/true);
    EXPECT_EQ(layout(kept), Shard(1));
    EXPECT_EQ(kept.sizes(), at::IntArrayRef({2, 2, 1}));
    EXPECT_THROW(at::quantile(x, 1.5, 1), c10::Error);
    EXPECT_THROW(at::quantile(x, q.view({1, 2}), 1), c10::Error);
    EXPECT_THROW(at::quantile(x.slice(1, 0, 0), 0.5, 0), c10::Error);
  });
}

TEST(Reduction, NormsOfEveryOrder) {
  check_all(norms());
}

TEST(Reduction, ScansSortsAndTriangles) {
  check_all(scans());
}

TEST(Reduction, SumOverTheShardedDimensionIsPartialAndOtherwiseSharded) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(uniform({5, 3}, 1), mesh, Shard(0));
    const auto layout = [](const at::Tensor& t) {
      return DTensor(t).placements()[0];
    };
    EXPECT_EQ(layout(x.sum()), Partial());
    EXPECT_EQ(layout(x.sum(1)), Shard(0));
    EXPECT_EQ(layout(x.mean(0)), Partial());
    EXPECT_EQ(layout(x.amax(0)), Partial(ReduceOp::kMax));
    EXPECT_EQ(layout(x.prod(0)), Partial(ReduceOp::kProduct));
    EXPECT_EQ(layout(x.norm()), Replicate());
    EXPECT_EQ(layout((x > 0.5).all()), Partial(ReduceOp::kMin));
    const auto y = place(uniform({5, 3}, 1), mesh, Shard(1));
    EXPECT_EQ(layout(y.sum(0)), Shard(0));
    EXPECT_EQ(layout(y.sum(0, true)), Shard(1));
  });
}

TEST(Reduction, PlainValuesAreTheSameOnEveryRank) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto a = uniform({5, 3}, 1);
    auto changed = a.clone();
    changed[4][2] += 1;
    for (const auto& p : {Shard(0), Shard(1), Replicate()}) {
      const auto x = place(a, mesh, p);
      EXPECT_DOUBLE_EQ(x.sum().item<double>(), a.sum().item<double>());
      EXPECT_TRUE(at::equal(x, place(a, mesh, Shard(0))));
      EXPECT_FALSE(at::equal(x, place(changed, mesh, Shard(0))));
      EXPECT_FALSE(at::equal(x, place(a.t().contiguous(), mesh, Shard(0))));
      EXPECT_TRUE(at::allclose(x, place(a + 1e-12, mesh, Shard(1))));
      EXPECT_FALSE(at::allclose(x, place(changed, mesh, Shard(1))));
      EXPECT_TRUE(x.is_same_size(place(changed, mesh, Shard(1))));
      EXPECT_TRUE((x > 0).all().is_nonzero());
      EXPECT_FALSE(x.is_pinned());
    }
  });
}

TEST(Reduction, AMeanOfIntegersIsRefusedAsInLibTorch) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(small_ints({5, 3}, 1), mesh, Shard(0));
    EXPECT_THROW(x.mean(), c10::Error);
    EXPECT_THROW(x.norm(), c10::Error);
  });
}

// Ranks gather three numbers of each shard for each result: its size, mean and
// squared distances. Moving small shards is cheaper.
TEST(Reduction, GatherTheMomentsOfShards) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto plain = at::arange(630, at::kDouble).view({63, 10}).square();
    const at::Tensor x = distribute_tensor(plain, mesh, {Shard(0)});
    const auto expect = [&](auto fn, int64_t bytes) {
      const CommDebugMode comm;
      const at::Tensor y = fn(x);
      EXPECT_EQ(comm.get_total_counts(), 1);
      EXPECT_EQ(comm.total().payload_bytes, bytes);
      EXPECT_TRUE(at::allclose(DTensor(y).full_tensor(), fn(plain), 1e-12));
    };
    using T = const at::Tensor&;
    expect([](T t) { return t.var(); }, 3 * 8);
    expect([](T t) { return t.std(at::IntArrayRef{-2, 1}, true); }, 3 * 8);
    expect([](T t) { return t.var(0); }, 3 * 10 * 8);
    expect([](T t) { return std::get<1>(at::std_mean(t, 0)); }, 3 * 10 * 8);
    const CommDebugMode comm;
    const auto [least, greatest] = x.aminmax();
    EXPECT_EQ(comm.get_total_counts(), 0);
    EXPECT_EQ(least.item<double>(), 0);
    EXPECT_EQ(greatest.item<double>(), 629. * 629);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
