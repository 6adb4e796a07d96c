// SPDX-License-Identifier: BSD-3-Clause
// Local tensors have the memory order of the global tensor, so that a view of
// the global tensor is also a view of each local tensor.
#include "tests/ops/against_plain.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

using Fn = std::function<at::Tensor(const at::Tensor&)>;

// Returns true if the dimensions of both tensors are ordered by their strides
// in the same way, and expanded in both or in neither.
bool have_one_order(at::IntArrayRef global, const at::Tensor& local) {
  for (size_t i = 0; i < global.size(); ++i) {
    const auto d = static_cast<int64_t>(i);
    if (local.size(d) <= 1 || local.numel() == 0) {
      continue;
    }
    if ((global[i] == 0) != (local.stride(d) == 0)) {
      return false;
    }
    for (size_t j = 0; j < global.size(); ++j) {
      const auto other = static_cast<int64_t>(j);
      if (local.size(other) > 1 && global[j] != 0 && global[i] < global[j] &&
          local.stride(d) > local.stride(other)) {
        return false;
      }
    }
  }
  return true;
}

// Expects the values and strides of the plain result in every layout.
void expect_order(const std::string& name, const at::Tensor& x, const Fn& fn) {
  const auto want = fn(x);
  Failures failures;
  run_ranks(3, [&](int64_t) {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    for (const auto& layout : layouts(x.dim(), 1, false)) {
      const DTensor got(fn(place(x, mesh, layout)));
      const auto where = name + " of " + describe({place(x, mesh, layout)});
      if (got.strides() != want.strides()) {
        failures.add(where + ": strides " + to_string(*got.spec()));
      }
      if (!have_one_order(got.strides(), got.to_local())) {
        failures.add(where + ": order of the local tensor");
      }
      if (!at::equal(got.full_tensor(), want)) {
        failures.add(where + ": values");
      }
    }
  });
  EXPECT_EQ(failures.text(), "");
}

TEST(MemoryOrder, OfRolledRows) {
  const auto x = numbers({4, 6}, 1);
  expect_order("rows", x, [](auto& t) { return t.roll(1, 0); });
  expect_order("columns", x.t(), [](auto& t) { return t.roll(1, 0); });
  expect_order("both", x.t(), [](auto& t) { return t.roll({1, 2}, {0, 1}); });
  expect_order("flat", x.t(), [](auto& t) { return t.roll(5); });
  const auto image =
      numbers({2, 3, 4, 5}, 2).contiguous(at::MemoryFormat::ChannelsLast);
  expect_order("image", image, [](auto& t) { return t.roll(1, 2); });
  expect_order("not moved", image, [](auto& t) { return t.roll(4, 2); });
  expect_order(
      "empty", numbers({0, 6}, 1).t(), [](auto& t) { return t.roll(1, 0); });
}

TEST(MemoryOrder, OfAScalarCannotBeRolled) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(numbers({}, 1), mesh, {Replicate()});
    EXPECT_THROW(x.roll(1, 0), c10::IndexError);
  });
}

TEST(MemoryOrder, OfResultsOfExpandedOperands) {
  const auto x = numbers({4, 6}, 1);
  const auto ones = at::ones({1}, at::kDouble);
  // The expanded operand is redistributed to the layout of the other.
  expect_order("expanded plus transposed", x.t(), [&](auto& t) {
    const auto plain = ones.expand({6, 4});
    if (!is_dtensor(t)) {
      return plain + t;
    }
    const DTensor d(t);
    const auto all = distribute_tensor(ones, d.device_mesh(), {Replicate()});
    return all.expand({6, 4}) + t;
  });
}

// LibTorch has no meta kernel of these operators.
TEST(MemoryOrder, OfResultsWithoutMetaKernel) {
  const auto x = numbers({4, 6}, 1);
  const std::vector<std::pair<std::string, Fn>> all = {
      {"log_sigmoid", [](auto& t) { return at::log_sigmoid(t); }},
      {"frexp", [](auto& t) { return std::get<0>(at::frexp(t)); }},
      {"mvlgamma", [](auto& t) { return (t.abs() + 1).mvlgamma(2); }},
      {"prelu", [](auto& t) { return at::_prelu_kernel(t, t * 0); }},
      {"masked_scatter",
       [](auto& t) { return t.masked_scatter(t > 0, t.abs()); }}};
  const std::vector<Fn> views = {
      [](auto& t) { return t; },
      [](auto& t) { return t.t(); },
      [](auto& t) { return t.slice(1, 1, 4); },
      [](auto& t) {
        return t.slice(1, 2, 3).expand({4, 3});
      }};
  run_ranks(3, [&](int64_t) {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    for (const auto& layout : layouts(2, 1, false)) {
      for (const auto& [name, fn] : all) {
        for (size_t i = 0; i < views.size(); ++i) {
          const auto want = fn(views[i](x));
          const DTensor got(fn(views[i](place(x, mesh, layout))));
          const auto where =
              c10::str(name, " of view ", i, ", ", to_string(*got.spec()));
          EXPECT_EQ(got.strides(), want.strides()) << where;
          EXPECT_TRUE(have_one_order(got.strides(), got.to_local())) << where;
          EXPECT_TRUE(at::allclose(got.full_tensor(), want)) << where;
        }
      }
    }
  });
}

TEST(MemoryOrder, OfDrawsLikeATensor) {
  run_ranks(3, [](int64_t) {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    for (const auto& layout : layouts(2, 1, false)) {
      const auto x = place(numbers({4, 6}, 1), mesh, layout).t();
      for (const auto& drawn :
           {at::rand_like(x), at::randn_like(x), at::randint_like(x, 9)}) {
        EXPECT_EQ(drawn.strides(), x.strides());
        EXPECT_TRUE(have_one_order(x.strides(), DTensor(drawn).to_local()));
      }
    }
  });
}

// Redistribution gives an expanded tensor its own memory, which can be written.
TEST(MemoryOrder, OfRedistributedExpandedTensors) {
  run_ranks(3, [](int64_t) {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto row = distribute_tensor(numbers({6}, 1), mesh, {Replicate()});
    const auto want = numbers({6}, 1).expand({4, 6});
    for (const auto& layout : {Placements{Shard(0)}, {Shard(1)}}) {
      auto x = DTensor(row.expand({4, 6})).redistribute(layout);
      EXPECT_TRUE(have_one_order(x.strides(), DTensor(x).to_local()));
      EXPECT_TRUE(at::equal(full_tensor(x), want));
      x.select(0, 1).add_(1);
      EXPECT_EQ(
          full_tensor(x).sum().item<double>(), want.sum().item<double>() + 6);
    }
  });
}

TEST(MemoryOrder, OfTheGradientOfCrossEntropy) {
  run_ranks(2, [](int64_t) {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto target =
        distribute_tensor(at::zeros({4}, at::kLong), mesh, {Replicate()});
    auto column = place(numbers({4, 1}, 1), mesh, {Shard(0)});
    const auto logits = column.expand({4, 3}).detach().requires_grad_();
    auto gradient = torch::autograd::grad(
        {at::cross_entropy_loss(logits, target)}, {logits})[0];
    EXPECT_EQ(gradient.strides(), at::IntArrayRef({3, 1}));
    EXPECT_TRUE(
        have_one_order(gradient.strides(), DTensor(gradient).to_local()));
    gradient.mul_(2);
  });
}

// The gradient of a sum is expanded, and the square passes its order on.
TEST(MemoryOrder, OfGradientsBehindViews) {
  const auto square = [](const at::Tensor& x) {
    return x.view({x.size(0) / 2, 2, 6}).transpose(0, 1).pow(2).sum();
  };
  const auto cube = [](const at::Tensor& x) {
    return x.transpose(0, 1).reshape({-1, 2}).pow(3).sum();
  };
  const std::vector<std::pair<Fn, Placement>> cases{
      {square, Shard(0)},
      {square, Replicate()},
      {cube, Shard(1)},
      {cube, Replicate()}};
  for (const auto& entry : cases) {
    const auto& f = entry.first;
    for (const auto& [ranks, rows] : {std::pair{2, 8}, std::pair{3, 10}}) {
      const auto full = numbers({rows, 6}, 1).requires_grad_();
      const auto grad =
          torch::autograd::grad({f(full)}, {full}, {}, {}, true)[0];
      const auto second = torch::autograd::grad({grad.pow(2).sum()}, {full})[0];
      run_ranks(ranks, [&](int64_t) {
        const auto mesh = init_device_mesh(at::kCPU, {get_world_size()});
        const auto x =
            distribute_tensor(full.detach(), mesh, {entry.second}).detach();
        x.requires_grad_();
        const auto g = torch::autograd::grad({f(x)}, {x}, {}, {}, true)[0];
        EXPECT_TRUE(at::equal(full_tensor(g), grad));
        const auto h = torch::autograd::grad({g.pow(2).sum()}, {x})[0];
        EXPECT_TRUE(at::equal(full_tensor(h), second));
      });
    }
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
