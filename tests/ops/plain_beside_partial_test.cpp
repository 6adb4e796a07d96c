// SPDX-License-Identifier: BSD-3-Clause
// Tests of a plain tensor of one element beside a sum over ranks. The tensor
// may differ between ranks, so no rank can determine its term.
#include <dtensor/ops/implicit_replication.h>
#include <tests/ops/against_plain.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

// Returns a reduction over two ranks of shape `sizes`: a sum filled with 3, an
// average filled with 1.5.
at::Tensor partial_ones(
    const DeviceMesh& mesh,
    at::IntArrayRef sizes,
    ReduceOp op = ReduceOp::kSum) {
  return DTensor::from_local(
      at::full(sizes, static_cast<double>(mesh.get_rank() + 1), at::kDouble),
      mesh,
      {Partial(op)});
}

using Call = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

struct NamedCall {
  const char* name;
  Call call;
};

std::vector<NamedCall> additive_calls() {
  using T = const at::Tensor&;
  return {
      {"add", [](T p, T x) { return p + x; }},
      {"added", [](T p, T x) { return x + p; }},
      {"alpha", [](T p, T x) { return at::add(p, x, 0.5); }},
      {"sub", [](T p, T x) { return p - x; }},
      {"subtracted", [](T p, T x) { return x - p; }},
      {"rsub", [](T p, T x) { return at::rsub(p, x); }},
      {"lerp", [](T p, T x) { return at::lerp(p, x, 0.25); }},
      {"addcmul", [](T p, T x) { return at::addcmul(p, x, x); }},
      {"addcdiv", [](T p, T x) { return at::addcdiv(p, x, x); }},
      {"where",
       [](T p, T x) {
         return at::where(
             replicate_tensor(
                 at::ones({}, at::kBool), DTensor(p).device_mesh()),
             p,
             x);
       }},
      {"in place", [](T p, T x) { return p.clone().add_(x); }},
      {"sub in place", [](T p, T x) { return p.clone().sub_(x); }},
      {"lerp in place", [](T p, T x) { return p.clone().lerp_(x, 0.5); }},
  };
}

std::string
error_or_value(const Call& call, const at::Tensor& p, at::Tensor x) {
  return error_of([&] { full_tensor(call(p, x)); });
}

TEST(PlainBesidePartial, IsRefusedInSums) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    const auto mine = at::full({}, static_cast<double>(rank + 1), at::kDouble);
    for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      for (const auto& sizes : {std::vector<int64_t>{}, {4}}) {
        const auto sum = partial_ones(mesh, sizes, op);
        for (const auto& [name, call] : additive_calls()) {
          EXPECT_NE(
              error_or_value(call, sum, mine).find("Call full_tensor() on"),
              std::string::npos)
              << to_string(op) << ", " << name << ": "
              << error_or_value(call, sum, mine);
        }
      }
    }
    EXPECT_EQ(
        error_of([&] { mine + partial_ones(mesh, {}); }),
        "[aten::add.Tensor] argument \"self\", a plain f64[], would be a term "
        "of the sum over ranks of f64[] on (dp=2): P(sum), and ranks may have "
        "different values of it. Call full_tensor() on the DTensor first, or "
        "pass from_local(value, mesh) if all ranks have the same value.");
  });
}

TEST(PlainBesidePartial, IsRefusedInLists) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    const auto mine = at::full({1}, static_cast<double>(rank + 1), at::kDouble);
    using T = const at::Tensor&;
    const std::vector<Call> calls = {
        [](T p, T x) {
          return at::cat({p, x});
        },
        [](T p, T x) {
          return at::stack({x, p});
        },
        [](T p, T x) {
          return at::hstack({x, p});
        },
        [](T p, T x) {
          return at::stack({p.squeeze(0), x.squeeze(0)});
        }};
    for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      for (const auto& call : calls) {
        const auto error =
            error_or_value(call, partial_ones(mesh, {1}, op), mine);
        EXPECT_NE(error.find("Call full_tensor() on"), std::string::npos)
            << to_string(op) << ": " << error;
      }
    }
  });
}

// The call is refused on every run, even if decisions exist for a gradient
// formula, a scope, or a number.
TEST(PlainBesidePartial, IsRefusedAfterOthersWereTaken) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    const auto sum = partial_ones(mesh, {3});
    const auto mine = at::full({}, static_cast<double>(rank + 1), at::kDouble);
    for (int pass = 0; pass < 2; ++pass) {
      {
        const auto scope = implicit_replication();
        const auto same = at::full({}, 2., at::kDouble);
        EXPECT_TRUE(full_tensor(sum + same).eq(5).all().item<bool>());
      }
      EXPECT_TRUE(full_tensor(sum + 2.).eq(5).all().item<bool>());
      EXPECT_TRUE(full_tensor(2. + sum).eq(5).all().item<bool>());
      EXPECT_TRUE(full_tensor(1. - sum).eq(-2).all().item<bool>());
      EXPECT_NE(error_of([&] { sum + mine; }), "nothing was thrown");
    }
  });
}

TEST(PlainBesidePartial, IsTakenWhereAllRanksHaveIt) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"dp"});
    const auto sum =
        DTensor::from_local(at::ones({2}, at::kDouble), mesh, {Partial()});
    const auto same = replicate_tensor(at::full({}, 4., at::kDouble), mesh);
    EXPECT_TRUE(full_tensor(sum + same).eq(7).all().item<bool>());
    EXPECT_TRUE(full_tensor(sum * 2.).eq(6).all().item<bool>());
    EXPECT_TRUE(full_tensor(sum * at::full({}, 2., at::kDouble))
                    .eq(6)
                    .all()
                    .item<bool>());
    auto written = sum.clone();
    written.index_put_({0}, 5.);
    EXPECT_EQ(full_tensor(written)[0].item<double>(), 5);
    written.fill_(2.);
    EXPECT_TRUE(full_tensor(written).eq(2).all().item<bool>());
  });
}

std::vector<NamedCall> writing_calls() {
  using T = const at::Tensor&;
  return {
      {"copy_", [](at::Tensor p, T x) { return p.copy_(x); }},
      {"fill_", [](at::Tensor p, T x) { return p.fill_(x); }},
      {"a row", [](at::Tensor p, T x) { return p.index_put_({1}, x); }},
      {"rows",
       [](at::Tensor p, T x) {
         return p.index_put_({at::indexing::Slice(1, 3)}, x);
       }},
      {"a column",
       [](at::Tensor p, T x) {
         return p.index_put_({at::indexing::Slice(), 0}, x);
       }},
      {"a view", [](T p, T x) { return p.select(0, 1).fill_(x), p; }},
      {"an element", [](T p, T x) { return p[0][1].copy_(x), p; }},
  };
}

// Writing an equal number gives the plain result; a different number is
// refused by all ranks, and writes nothing.
TEST(PlainBesidePartial, IsComparedWhereItIsWritten) {
  run_ranks(3, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"dp"});
    const auto start = at::arange(12, at::kDouble).view({4, 3}) - 5;
    for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
      for (const auto& [name, call] : writing_calls()) {
        const auto sum = DTensor::from_local(
            op == ReduceOp::kSum && rank > 0 ? at::zeros_like(start)
                                             : start.clone(),
            mesh,
            {Partial(op)});
        const auto mine = at::full({}, 0.5 + static_cast<double>(rank));
        const auto error = error_of([&, &write = call] { write(sum, mine); });
        EXPECT_NE(error.find("differs between ranks"), std::string::npos)
            << name;
        EXPECT_TRUE(at::equal(full_tensor(sum), start)) << name;
        const auto same = at::full({}, 0.5);
        EXPECT_TRUE(
            at::equal(full_tensor(call(sum, same)), call(start.clone(), same)))
            << name;
      }
    }
    auto sum = partial_ones(mesh, {4, 3});
    sum.index_put_({1}, 7.); // LibTorch makes a tensor of the number
    EXPECT_TRUE(full_tensor(sum)[1].eq(7).all().item<bool>());
  });
}

// Plain numbers from gradient formulas are accepted, because they are equal on
// all ranks.
TEST(PlainBesidePartial, IsTakenInGradients) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    const auto whole = at::arange(6, at::kDouble).view({3, 2}) - 2;
    auto plain = whole.clone().requires_grad_();
    auto x = distribute_tensor(whole, mesh, {Shard(0)}).requires_grad_();
    const auto loss = [](const at::Tensor& t) {
      const auto sum = t.sum(0);
      return (sum.clamp_min(0.5).pow(2) + sum.nan_to_num(0.)).sum();
    };
    loss(plain).backward();
    loss(x).backward();
    EXPECT_TRUE(at::allclose(full_tensor(x.grad()), plain.grad()));
  });
}

// torch.distributions broadcast numbers this way.
TEST(PlainNumbers, BroadcastTensorsPlacesThem) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto full = numbers({4, 5}, 1);
    const auto number = at::full({}, 2.5, at::kDouble);
    for (const auto& layout :
         {Placements{Replicate()}, {Shard(0)}, {Shard(1)}}) {
      const auto x = place(full, mesh, layout).requires_grad_();
      const auto both = at::broadcast_tensors({number, x});
      EXPECT_TRUE(is_dtensor(both[0]));
      EXPECT_TRUE(at::equal(
          full_tensor(both[0].square() + 1),
          (number.square() + 1).expand({4, 5})));
      const auto loss = (both[0] * both[1]).sum();
      loss.backward();
      EXPECT_TRUE(at::equal(full_tensor(x.grad()), number.expand({4, 5})));
    }
    const auto x = place(full, mesh, {Shard(0)});
    EXPECT_EQ(
        at::broadcast_tensors({x, at::ones({3, 1, 1}, at::kDouble)})[0].sizes(),
        (std::vector<int64_t>{3, 4, 5}));
    const auto trained = number.clone().requires_grad_();
    EXPECT_FALSE(is_dtensor(at::broadcast_tensors({x, trained})[1]));
    const auto p = partial_ones(mesh, {4, 5});
    EXPECT_THAT(
        error_of([&] {
          p + at::broadcast_tensors({p, number})[1];
        }),
        ::testing::HasSubstr("got mixed plain tensor and DTensor"));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
