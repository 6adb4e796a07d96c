// SPDX-License-Identifier: BSD-3-Clause
// x[mask] of sharded tensors: each rank selects from its rows.
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/debug/explain.h>
#include <tests/ops/against_plain.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace against_plain;

// Returns x[mask], or x[:, mask] with `begin` dimensions in front of the mask.
at::Tensor
at_mask(const at::Tensor& x, const at::Tensor& mask, int64_t begin = 0) {
  c10::List<std::optional<at::Tensor>> indices;
  indices.resize(static_cast<size_t>(begin));
  indices.push_back(mask);
  return at::index(x, indices);
}

// Returns the case of a mask where the second operand exceeds `limit`.
OpCase where_above(
    std::string name,
    at::Tensor x,
    at::Tensor of_mask,
    double limit = 0,
    int64_t begin = 0) {
  return {
      std::move(name),
      {std::move(x), std::move(of_mask)},
      [=](const TensorList& in) {
        return TensorList{at_mask(in[0], in[1].detach().gt(limit), begin)};
      }};
}

TEST(MaskIndex, IsThatOfThePlainTensor) {
  const auto x = numbers({5, 4}, 1);
  const auto cube = numbers({3, 5, 2}, 2);
  check_cases({
      where_above("elements", x, numbers({5, 4}, 3)),
      where_above("rows", x, numbers({5}, 4)),
      where_above("no rows", x, numbers({5}, 4), 100),
      where_above("all rows", x, numbers({5}, 4), -100),
      where_above("two of three dims", cube, numbers({3, 5}, 5)),
      where_above("columns in memory", numbers({4, 5}, 1).t(), numbers({5}, 4)),
      where_above("vector", numbers({7}, 1), numbers({7}, 2)),
      where_above("one row", numbers({1, 3}, 1), numbers({1}, 2), -100),
      where_above("of no rows", numbers({0, 3}, 1), numbers({0}, 2)),
  });
}

TEST(MaskIndex, BehindADimIsThatOfThePlainTensor) {
  const auto x = numbers({4, 5}, 1);
  const auto cube = numbers({2, 5, 3}, 2);
  const auto in_memory = numbers({3, 2, 5}, 2).permute({1, 2, 0});
  check_cases({
      where_above("columns", x, numbers({5}, 4), 0, 1),
      where_above("no columns", x, numbers({5}, 4), 100, 1),
      where_above("middle", cube, numbers({5}, 4), 0, 1),
      where_above("last two", cube, numbers({5, 3}, 5), 0, 1),
      where_above("last", cube, numbers({3}, 5), -100, 2),
      where_above("middle in memory", in_memory, numbers({5}, 4), 0, 1),
      where_above("of no columns", numbers({3, 0}, 1), numbers({0}, 2), 0, 1),
  });
}

TEST(MaskIndex, HasTheStridesOfThePlainTensor) {
  const auto x = numbers({4, 3, 5}, 1).permute({1, 2, 0});
  const auto rows = numbers({3}, 2).gt(-100);
  const auto elements = numbers({3, 5}, 2).gt(0);
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& mask : {rows, elements}) {
      for (const auto& p : layouts(3, 1, true)) {
        const auto got = at_mask(
            place(x, mesh, p), distribute_tensor(mask, mesh, {Shard(0)}));
        const auto truth = at_mask(x, mask);
        EXPECT_TRUE(same(full_tensor(got), truth));
        EXPECT_EQ(got.strides(), truth.strides());
      }
    }
  });
}

TEST(MaskIndex, TakesBytes) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = numbers({5, 4}, 1);
    const auto mask = at::tensor({1, 0, 1, 1, 0}, at::kByte);
    const auto rows = distribute_tensor(mask, mesh, {Shard(0)}, std::nullopt);
    const auto got = at_mask(place(x, mesh, {Shard(0)}), rows);
    EXPECT_EQ(DTensor(got).placements(), Placements{Shard(0)});
    EXPECT_TRUE(same(full_tensor(got), at_mask(x, mask.to(at::kBool))));
  });
}

TEST(MaskIndex, OtherIndicesMatchThePlainTensor) {
  using torch::indexing::Slice;
  const auto indexed = [](std::string name, auto fn) {
    return OpCase{
        std::move(name),
        {numbers({5, 4}, 1), numbers({5}, 4), numbers({4}, 4)},
        [fn](const TensorList& in) {
          const at::Tensor rows = in[1].detach().gt(-100);
          const at::Tensor columns = in[2].detach().gt(0);
          return TensorList{fn(in[0], rows, columns)};
        }};
  };
  check_cases({
      indexed(
          "x[i, mask]",
          [](const auto& x, const auto&, const auto& columns) {
            return x.index({columns.nonzero().flatten(), columns});
          }),
      indexed(
          "x[1:, mask]",
          [](const auto& x, const auto&, const auto& columns) {
            return x.index({Slice(1), columns});
          }),
      indexed(
          "x[mask, i]",
          [](const auto& x, const auto& rows, const auto&) {
            const auto i = rows.to(at::kLong);
            return x.index({rows, i});
          }),
  });
}

// x of 16 rows (or x.t() of 16 columns), the layout of the result, and the
// collectives of the call and its gradient.
struct Expected {
  Placements layout;
  int64_t all_gathers = 0;
  int64_t all_to_alls = 0;
  int64_t backward = 0;
  bool transposed = false;
};

Placements gradient_layout(Placements layout) {
  for (auto& p : layout) {
    p = p.is_partial() ? Replicate() : p;
  }
  return layout;
}

void expect_moves(
    const DeviceMesh& mesh,
    const Placements& of_x,
    const Placements& of_mask,
    const Expected& expected) {
  const auto by_rows = numbers({16, 4}, 1);
  const auto plain = expected.transposed ? by_rows.t() : by_rows;
  const int64_t begin = expected.transposed ? 1 : 0;
  const auto mask = at::arange(16).lt(6);
  auto x = leaf(place(plain, mesh, of_x));
  const at::Tensor rows = distribute_tensor(mask, mesh, of_mask, std::nullopt);
  const CommDebugMode comm;
  const auto y = at_mask(x, rows, begin);
  const auto of_kind = [&](CollectiveKind kind) {
    return comm.total({.kind = kind}).count;
  };
  EXPECT_EQ(DTensor(y).placements(), expected.layout);
  EXPECT_EQ(of_kind(CollectiveKind::kAllGather), expected.all_gathers);
  EXPECT_EQ(of_kind(CollectiveKind::kAllToAll), expected.all_to_alls);
  const auto forward = expected.all_gathers + expected.all_to_alls;
  EXPECT_EQ(comm.get_total_counts(), forward);
  const auto truth = plain.narrow(begin, 0, 6);
  y.backward(
      place(at::ones_like(truth), mesh, gradient_layout(expected.layout)));
  EXPECT_EQ(comm.get_total_counts(), forward + expected.backward);
  EXPECT_TRUE(same(full_tensor(y).detach(), truth));
  EXPECT_TRUE(same(
      full_tensor(x.grad()),
      mask.to(at::kDouble).unsqueeze(1 - begin).expand(plain.sizes())));
}

// One all_gather of counts, and the rows that move to other ranks. A mask with
// other shards than x is redistributed to the shards of x. Columns stay where
// they are.
TEST(MaskIndex, MovesOnlyWhatIsSelected) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const Placements whole{Replicate()};
    const Placements rows{Shard(0)};
    const Placements columns{Shard(1)};
    const Placements sum{Partial()};
    expect_moves(mesh, rows, rows, {rows, 1, 1, 1});
    expect_moves(mesh, rows, whole, {rows, 1, 1, 1});
    expect_moves(mesh, whole, rows, {rows, 1, 1, 2});
    expect_moves(mesh, columns, whole, {columns, 0, 0, 0});
    expect_moves(mesh, columns, rows, {columns, 1, 0, 0});
    expect_moves(mesh, sum, whole, {sum, 0, 0, 0});
  });
  run_ranks(1, [] {
    const auto mesh = init_device_mesh(at::kCPU, {1});
    expect_moves(mesh, {Shard(0)}, {Shard(0)}, {{Shard(0)}, 0, 0, 0});
  });
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const Placements both{Shard(0), Shard(1)};
    expect_moves(mesh, both, {Shard(0), Replicate()}, {both, 1, 1, 1});
    expect_moves(
        mesh,
        {Partial(), Shard(0)},
        {Replicate(), Shard(0)},
        {{Partial(), Shard(0)}, 1, 1, 1});
  });
}

TEST(MaskIndex, MovesOnlyTheSelectedColumns) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const Placements whole{Replicate()};
    const Placements rows{Shard(0)};
    const Placements columns{Shard(1)};
    expect_moves(mesh, rows, whole, {rows, 0, 0, 0, true});
    expect_moves(mesh, rows, rows, {rows, 1, 0, 0, true});
    expect_moves(mesh, columns, rows, {columns, 1, 1, 1, true});
    expect_moves(mesh, columns, whole, {columns, 1, 1, 1, true});
    expect_moves(mesh, whole, rows, {columns, 1, 1, 2, true});
  });
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const Placements both{Shard(0), Shard(1)};
    expect_moves(mesh, both, {Replicate(), Shard(0)}, {both, 1, 1, 1, true});
    expect_moves(mesh, both, {Replicate(), Replicate()}, {both, 1, 1, 1, true});
  });
}

// Rows that already are on the right rank do not move.
TEST(MaskIndex, DoesNotMoveEvenRows) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto plain = numbers({8, 2}, 1);
    const auto mask = at::arange(8).remainder(2).eq(0);
    auto x = leaf(place(plain, mesh, {Shard(0)}));
    const auto rows = distribute_tensor(mask, mesh, {Shard(0)}, std::nullopt);
    const CommDebugMode comm;
    at_mask(x, rows).sum().backward();
    EXPECT_EQ(comm.total({.kind = CollectiveKind::kAllGather}).count, 1);
    EXPECT_EQ(comm.total({.kind = CollectiveKind::kAllToAll}).count, 0);
  });
}

OpCase masked_select_case(std::string name, at::Tensor x, at::Tensor of_mask) {
  return {
      std::move(name),
      {std::move(x), std::move(of_mask)},
      [](const TensorList& in) {
        return TensorList{in[0].masked_select(in[1].detach().gt(0))};
      }};
}

// masked_select is x[mask] of the broadcast operands.
TEST(MaskedSelect, IsThatOfThePlainTensor) {
  check_cases({
      masked_select_case("elements", numbers({5, 4}, 1), numbers({5, 4}, 3)),
      masked_select_case("rows", numbers({5, 4}, 1), numbers({5, 1}, 3)),
      masked_select_case("of a row", numbers({4}, 1), numbers({5, 4}, 3)),
      masked_select_case("of a number", numbers({}, 1), numbers({5}, 3)),
      masked_select_case("one", numbers({}, 1), at::ones({}, at::kDouble)),
  });
}

TEST(MaskedSelect, MovesTheGradientBack) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto x = leaf(place(numbers({16, 4}, 1), mesh, {Shard(0)}));
    const auto rows = distribute_tensor(
        at::arange(16).lt(6).unsqueeze(1), mesh, {Shard(0)}, std::nullopt);
    const auto some = x.masked_select(rows);
    const CommDebugMode comm;
    some.backward(some.detach());
    EXPECT_EQ(comm.total({.kind = CollectiveKind::kAllToAll}).count, 1);
    EXPECT_EQ(comm.get_total_counts(), 1);
    EXPECT_EQ(
        error_of([&] { x.masked_select(rows.to(at::kLong)); }),
        "masked_select: expected BoolTensor for mask");
  });
}

TEST(MaskIndex, HasSecondDerivatives) {
  const auto plain = numbers({5, 4}, 1);
  const auto mask = numbers({5}, 4).gt(0);
  const auto second = [](const at::Tensor& x, const at::Tensor& rows) {
    const auto y = at_mask(x, rows).pow(3).sum();
    const auto first = torch::autograd::grad(
        {y}, {x}, {}, std::nullopt, /*create_graph=*/true);
    return torch::autograd::grad({first[0].pow(2).sum()}, {x})[0];
  };
  const auto truth = second(leaf(plain.clone()), mask);
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    for (const auto& p : layouts(2, 1, true)) {
      const auto x = leaf(place(plain, mesh, p));
      const auto rows = distribute_tensor(mask, mesh, {Shard(0)}, std::nullopt);
      EXPECT_TRUE(same(full_tensor(second(x, rows)), truth));
    }
  });
}

TEST(MaskIndex, SaysWhatItDoes) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto plain = numbers({4, 4}, 1);
    const auto mask = plain.gt(0);
    const auto x = place(plain, mesh, {Shard(1)});
    const auto columns = distribute_tensor(mask, mesh, {Shard(1)});
    const ExplainMode explained;
    at_mask(x, columns);
    ASSERT_EQ(explained.calls().size(), 1);
    EXPECT_EQ(explained.calls()[0].by, DecidedBy::kKernel);
    EXPECT_EQ(
        explained.calls()[0].results.at(0)->placements(), Placements{Shard(0)});
    const ExplicitRedistributionContext only_explicit;
    EXPECT_NE(
        error_of([&] {
          at_mask(x, columns);
        }).find("of argument \"self\" from f64[4, 4] on (tp=2): S(1) to S(0)"),
        std::string::npos);
    EXPECT_NE(
        error_of([&] { at_mask(x, mask); }).find("mixed plain tensor"),
        std::string::npos);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
