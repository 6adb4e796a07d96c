// SPDX-License-Identifier: BSD-3-Clause
// local_map turns functions on local tensors into functions on DTensors.
#include <dtensor/tensor/local_map.h>

#include "support.h"

#include <functional>
#include <memory>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

at::Tensor product(const at::Tensor& x, const at::Tensor& w) {
  return at::mm(x, w);
}

// Multiplies rows of the left operand by the full right operand.
auto product_of_rows() {
  return local_map(
      product,
      {Shard(0)},
      {{Shard(0)}, {Replicate()}},
      {.in_grad_placements = {{Shard(0)}, {Partial()}}});
}

TEST(LocalMap, ComputesOnLocalTensors) {
  for (const auto rows : {1, 5, 6}) {
    on_meshes({{1}, {2}, {3}, {4}}, [&](const DeviceMesh& mesh) {
      const auto x = counting({rows, 3});
      const auto w = counting({3, 4});
      const auto y = product_of_rows()(
          placed(x, mesh, {Shard(0)}), placed(w, mesh, {Replicate()}));
      EXPECT_EQ(DTensor(y).placements(), Placements{Shard(0)});
      expect_same(whole(y), at::mm(x, w));
    });
  }
}

// The function sums partial products itself, as in Python's documentation.
TEST(LocalMap, TheFunctionMayCommunicate) {
  on_meshes({{2}, {3}}, [](const DeviceMesh& mesh) {
    const auto x = counting({4, 6});
    const auto w = counting({6, 2});
    const auto sum_of_products = local_map(
        [&](const at::Tensor& part, const at::Tensor& of_w) {
          auto& group = get_group(mesh, int64_t{0});
          return group.all_reduce(at::mm(part, of_w), ReduceOp::kSum);
        },
        {Replicate()},
        {{Shard(1)}, {Shard(0)}});
    Counter counter;
    const auto y = sum_of_products(
        placed(x, mesh, {Shard(-1)}), placed(w, mesh, {Shard(0)}));
    EXPECT_EQ(counter.take(), "1 all_reduce");
    EXPECT_TRUE(DTensor(y).spec()->is_replicated());
    expect_same(whole(y), at::mm(x, w));
  });
}

TEST(LocalMap, OnTwoMeshDimensions) {
  on_meshes({{2, 2}, {2, 3}}, [](const DeviceMesh& mesh) {
    const auto x = counting({5, 7});
    const auto w = counting({7, 4});
    const auto mm = local_map(
        product,
        {Shard(0), Partial()},
        {{Shard(0), Shard(1)}, {Replicate(), Shard(0)}},
        {.in_grad_placements = {{Shard(0), Shard(1)}, {Partial(), Shard(0)}}});
    const auto dx = placed(x, mesh, {Shard(0), Shard(1)}, true);
    const auto dw = placed(w, mesh, {Replicate(), Shard(0)}, true);
    const auto y = mm(dx, dw);
    expect_same(whole(y), at::mm(x, w));
    const auto leaf_x = x.clone().requires_grad_();
    const auto leaf_w = w.clone().requires_grad_();
    at::mm(leaf_x, leaf_w).pow(2).sum().backward();
    y.pow(2).sum().backward();
    expect_same(whole(dx.grad()), leaf_x.grad());
    expect_same(whole(dw.grad()), leaf_w.grad());
  });
}

// Both mesh dimensions shard the same dimension, unevenly.
TEST(LocalMap, InfersShapesOfUnevenShards) {
  on_meshes({{2, 2}, {3, 2}}, [](const DeviceMesh& mesh) {
    for (const auto rows : {1, 5, 7}) {
      const auto x = counting({rows, 2});
      const auto twice = local_map(
          [](const at::Tensor& t) { return t * 2; }, {Shard(0), Shard(0)});
      Counter counter;
      const auto y = twice(placed(x, mesh, {Shard(0), Shard(0)}));
      EXPECT_EQ(counter.take(), "");
      expect_same(whole(y), x * 2);
    }
  });
}

TEST(LocalMap, ShapesMayBeGiven) {
  on_meshes({{2}}, [](const DeviceMesh& mesh) {
    const auto x = counting({5, 2});
    const auto y = local_map(
        [](const at::Tensor& t) { return t.t(); },
        {Shard(1)},
        {{Shard(0)}},
        {.out_shapes = {{{2, 5}}}})(placed(x, mesh, {Shard(0)}));
    expect_same(whole(y), x.t());
  });
}

TEST(LocalMap, GradientsEqualThePlainFunction) {
  for (const auto rows : {1, 5, 6}) {
    const auto x = counting({rows, 3}).requires_grad_();
    const auto w = counting({3, 4}).requires_grad_();
    at::mm(x, w).pow(2).sum().backward();
    on_meshes({{1}, {2}, {3}}, [&](const DeviceMesh& mesh) {
      const auto dx = placed(x, mesh, {Shard(0)}, true);
      const auto dw = placed(w, mesh, {Replicate()}, true);
      product_of_rows()(dx, dw).pow(2).sum().backward();
      expect_same(whole(dx.grad()), x.grad());
      expect_same(whole(dw.grad()), w.grad());
    });
  }
}

std::vector<at::Tensor> second_derivatives(
    const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& fn,
    const at::Tensor& x,
    const at::Tensor& w) {
  const auto first =
      torch::autograd::grad({fn(x, w).pow(3).sum()}, {x, w}, {}, true, true);
  return torch::autograd::grad(
      {first[0].pow(2).sum() + first[1].pow(2).sum()}, {x, w});
}

TEST(LocalMap, IsTwiceDifferentiable) {
  const auto x = counting({5, 3}).requires_grad_();
  const auto w = counting({3, 2}).requires_grad_();
  const auto truth = second_derivatives(product, x, w);
  on_meshes({{1}, {2}, {3}}, [&](const DeviceMesh& mesh) {
    const auto mine = second_derivatives(
        product_of_rows(),
        placed(x, mesh, {Shard(0)}, true),
        placed(w, mesh, {Replicate()}, true));
    for (size_t i = 0; i < truth.size(); ++i) {
      EXPECT_TRUE(at::allclose(whole(mine[i]), truth[i], 1e-9, 1e-9)) << i;
    }
  });
}

// Only the caller can distinguish whether ranks compute terms of a gradient or
// the same gradient.
TEST(LocalMap, RefusesAnAmbiguousGradient) {
  on_meshes({{2}}, [](const DeviceMesh& mesh) {
    const auto x = placed(counting({4, 3}), mesh, {Shard(0)});
    const auto w = placed(counting({3, 2}), mesh, {Replicate()}, true);
    const auto mm = local_map(product, {Shard(0)});
    EXPECT_EQ(
        error_of<c10::ValueError>([&] { mm(x, w); }),
        "[local_map] argument 1, f64[3, 2] on (a=2): R, has an ambiguous "
        "gradient, since other arguments or results differ between the ranks "
        "of \"a\": the gradient may be a sum over these ranks, or the same on "
        "all of them. State which in in_grad_placements: Partial() or "
        "Replicate().");
    {
      const torch::NoGradGuard no_grad;
      expect_same(whole(mm(x, w)), at::mm(whole(x), whole(w)));
    }
    // All operands are replicated, so the gradient is unambiguous.
    const auto all = local_map(product, {Replicate()});
    all(placed(counting({4, 3}), mesh, {Replicate()}), w).sum().backward();
    expect_same(
        whole(w.grad()),
        at::mm(counting({4, 3}).t(), at::ones({4, 2}).to(at::kDouble)));
  });
}

TEST(LocalMap, TakesAndReturnsAnything) {
  using Lists = std::tuple<
      at::Tensor,
      int64_t,
      std::vector<at::Tensor>,
      std::optional<at::Tensor>>;
  on_meshes({{2}}, [](const DeviceMesh& mesh) {
    int64_t calls = 0;
    const auto fn = local_map(
        [](const std::vector<at::Tensor>& list,
           const std::optional<at::Tensor>& none,
           double factor,
           int64_t& count,
           std::unique_ptr<int> owned,
           const at::Tensor& undefined) {
          EXPECT_FALSE(none.has_value());
          EXPECT_FALSE(undefined.defined());
          EXPECT_EQ(*owned, 7);
          ++count;
          return Lists(
              list[0] * factor, list[0].size(0), {list[1], list[0]}, {});
        },
        PlacementsList{
            {Shard(0)}, std::nullopt, {Replicate()}, {Shard(0)}, std::nullopt},
        {{Shard(0)},
         {Replicate()},
         std::nullopt,
         std::nullopt,
         std::nullopt,
         std::nullopt,
         std::nullopt});
    const std::vector<at::Tensor> list{
        placed(counting({4}), mesh, {Shard(0)}),
        placed(counting({3}), mesh, {Replicate()})};
    const auto [first, size, rest, none] =
        fn(list,
           std::optional<at::Tensor>(),
           0.5,
           calls,
           std::make_unique<int>(7),
           at::Tensor());
    expect_same(whole(first), counting({4}) * 0.5);
    EXPECT_EQ(size, 2);
    ASSERT_EQ(rest.size(), 2U);
    expect_same(whole(rest[0]), counting({3}));
    expect_same(whole(rest[1]), counting({4}));
    EXPECT_FALSE(none.has_value());
    EXPECT_EQ(calls, 1);
  });
}

TEST(LocalMap, RedistributesIfAllowed) {
  on_meshes({{2}}, [](const DeviceMesh& mesh) {
    const auto x = counting({4, 3});
    const auto dx = placed(x, mesh, {Shard(0)}, true);
    const auto twice = [](const at::Tensor& t) { return t * 2; };
    EXPECT_EQ(
        error_of<c10::ValueError>(
            [&] { local_map(twice, {Replicate()}, {{Replicate()}})(dx); }),
        "[local_map] argument 0 is f64[4, 3] on (a=2): S(0), but in_placements "
        "has R for it. Redistribute it, or set redistribute_inputs.");
    Counter counter;
    const auto y = local_map(
        twice, {Replicate()}, {{Replicate()}}, {.redistribute_inputs = true})(
        dx);
    EXPECT_EQ(counter.take(), "1 all_gather");
    expect_same(whole(y), x * 2);
    (y * y).sum().backward();
    EXPECT_EQ(counter.take(), "");
    EXPECT_EQ(DTensor(dx.grad()).placements(), Placements{Shard(0)});
    expect_same(whole(dx.grad()), x * 8);
  });
}

TEST(LocalMap, WaitsForResultsInFlight) {
  on_meshes({{2}}, [](const DeviceMesh& mesh) {
    const auto x = counting({4, 3});
    const auto gathered = redistribute(
        placed(x, mesh, {Shard(0)}), {Replicate()}, {.async_op = true});
    const auto y = local_map(
        [](const at::Tensor& t) { return t + 1; }, {Replicate()})(gathered);
    expect_same(whole(y), x + 1);
  });
}

TEST(LocalMap, WithoutDTensorsItIsTheFunction) {
  const auto x = counting({4, 3});
  const auto w = counting({3, 2});
  const auto y = product_of_rows()(x, w);
  EXPECT_FALSE(is_dtensor(y));
  expect_same(y, at::mm(x, w));
}

class LocalMapOutside : public testing::Test {
 protected:
  // Runs `fn` on three ranks. Two of them form the mesh.
  template <class Fn>
  static void run(const Fn& fn) {
    run_ranks(3, [&](int64_t rank) {
      fn(make_device_mesh(at::kCPU, {2}, {0, 2}, {"tp"}), rank != 1);
    });
  }
};

TEST_F(LocalMapOutside, ReturnsAnEmptyTensor) {
  run([](const DeviceMesh& mesh, bool inside) {
    const auto x = distribute_tensor(counting({4, 3}), mesh, {Shard(0)});
    const auto w = distribute_tensor(counting({3, 2}), mesh, {Replicate()});
    const auto leaf_w = w.detach().requires_grad_();
    const auto y = product_of_rows()(x, leaf_w);
    EXPECT_EQ(spec_text(y), "f64[4, 2] on (tp=2): S(0)");
    y.sum().backward();
    EXPECT_EQ(leaf_w.grad().sizes(), w.sizes());
    EXPECT_EQ(DTensor(y).full_tensor().numel(), inside ? 8 : 0);
    const auto scaled = local_map(
        [](const at::Tensor& t, const at::Tensor& factors) {
          return t * factors;
        },
        {Shard(0)})(x, counting({3}));
    EXPECT_EQ(spec_text(scaled), "f64[4, 3] on (tp=2): S(0)");
    EXPECT_EQ(scaled.is_meta(), false);
    // The result has another dtype.
    const auto most = local_map(
        [](const at::Tensor& t) { return t.argmax(1); }, {Shard(0)})(x);
    EXPECT_EQ(spec_text(most), "i64[4] on (tp=2): S(0)");
  });
}

TEST_F(LocalMapOutside, RefusesUnknownShapes) {
  run([](const DeviceMesh& mesh, bool inside) {
    const auto reads = local_map(
        [](const at::Tensor& t) { return t * t.sum().item<double>(); },
        {Shard(0)});
    const auto even = distribute_tensor(counting({4, 3}), mesh, {Shard(0)});
    const auto uneven = distribute_tensor(counting({5, 3}), mesh, {Shard(0)});
    const auto twice = [](const at::Tensor& t) { return t * 2; };
    if (inside) {
      reads(even);
      local_map(twice, {Shard(0)})(uneven);
    } else {
      EXPECT_EQ(
          error_of([&] { reads(even); }),
          "[local_map] the function has no value on rank 1, which is outside "
          "the mesh (tp=2): it does not run on meta tensors, so the shapes of "
          "its results are unknown. Call it on ranks of the mesh only.");
      EXPECT_EQ(
          error_of([&] { local_map(twice, {Shard(0)})(uneven); }),
          "[local_map] rank 1 is outside the mesh (tp=2) and cannot infer the "
          "shape of a result with uneven shards. Pass out_shapes.");
    }
    const auto y =
        local_map(twice, {Shard(0)}, {}, {.out_shapes = {{{5, 3}}}})(uneven);
    EXPECT_EQ(spec_text(y), "f64[5, 3] on (tp=2): S(0)");
  });
}

// Returns the text of the ValueError or TypeError that the call throws.
template <class Error = c10::ValueError, class Fn>
std::string refusal(const Fn& call) {
  std::string text;
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = mesh_of({2});
    const auto x = placed(counting({4, 3}), mesh, {Shard(0)});
    const auto mine = error_of<Error>([&] { call(x, mesh); });
    if (rank == 0) {
      text = mine;
    }
  });
  return text;
}

at::Tensor same(const at::Tensor& t) {
  return t;
}

TEST(LocalMap, RefusesArguments) {
  using T = const DTensor&;
  using M = const DeviceMesh&;
  EXPECT_EQ(
      refusal<c10::TypeError>([](T x, M) {
        local_map(product, {Shard(0)}, {{Shard(0)}, {Replicate()}})(
            x, counting({3, 2}));
      }),
      "[local_map] argument 1 is a plain tensor of shape [3, 2], but "
      "in_placements has R for it. Make it a DTensor, or pass std::nullopt for "
      "it.");
  EXPECT_EQ(
      refusal<c10::TypeError>([](T x, M) {
        local_map(
            [](const at::Tensor& t, int) { return t; },
            {Shard(0)},
            {{Shard(0)}, {Replicate()}})(x, 3);
      }),
      "[local_map] argument 1 is not a tensor, but in_placements has R for it. "
      "Pass std::nullopt.");
  EXPECT_EQ(
      refusal([](T x, M) { local_map(same, {Shard(0)}, {std::nullopt})(x); }),
      "[local_map] argument 0 is a DTensor, f64[4, 3] on (a=2): S(0), but "
      "in_placements has std::nullopt for it. Pass its layout.");
  EXPECT_EQ(
      refusal([](T x, M) {
        local_map(same, {Shard(0)}, {{Shard(0)}, std::nullopt})(x);
      }),
      "[local_map] in_placements has layouts for 2 arguments, but the function "
      "was called with 1 (counting each tensor of a list). Pass one for each.");
  EXPECT_EQ(
      refusal<c10::Error>([](T x, M) {
        local_map(
            same,
            {Shard(0)},
            {},
            {.device_mesh = init_device_mesh(at::kCPU, {2}, {"b"})})(x);
      }),
      "[local_map] argument 0, f64[4, 3] on (a=2): S(0), is on a different "
      "mesh than device_mesh, (b=2). Bring all to one mesh: "
      "from_local(x.full_tensor(), mesh) replicates x on a mesh.");
}

TEST(LocalMap, RefusesResults) {
  using T = const DTensor&;
  using M = const DeviceMesh&;
  EXPECT_EQ(
      refusal([](T x, M) {
        local_map(same, {Shard(0)}, {}, {.out_shapes = {{}, {}}})(x);
      }),
      "[local_map] the function returned 1 value (counting each tensor of a "
      "list), but out_shapes are for 2. Pass one for each.");
  EXPECT_EQ(
      refusal<c10::TypeError>([](T x, M mesh) {
        local_map(
            [&](const at::Tensor& t) -> at::Tensor {
              return DTensor::from_local(t, mesh, {Shard(0)});
            },
            {Shard(0)})(x);
      }),
      "[local_map] the function returned a DTensor, f64[4, 3] on (a=2): S(0), "
      "as result 0. Return local tensors.");
  EXPECT_EQ(
      refusal([](T x, M) {
        local_map(
            [](const at::Tensor& t) { return std::make_pair(t, t); },
            {Shard(0)})(x);
      }),
      "[local_map] the function returned 2 values (counting each tensor of a "
      "list), but out_placements are for 1. Pass one for each.");
  EXPECT_EQ(
      refusal([](T x, M) { local_map(same, PlacementsList{std::nullopt})(x); }),
      "[local_map] result 0 is a tensor of shape [2, 3], but out_placements "
      "has std::nullopt for it. Pass its layout.");
  EXPECT_EQ(
      refusal([](T x, M) {
        local_map([](const at::Tensor&) { return 3; }, {Shard(0)})(x);
      }),
      "[local_map] result 0 is not a tensor, but out_placements has S(0) for "
      "it. Pass std::nullopt.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
