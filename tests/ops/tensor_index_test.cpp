// SPDX-License-Identifier: BSD-3-Clause
// Tests of x[i, :, j] and x[i, :, j] = values along sharded dimensions. Each
// rank looks up, and writes, the elements of its shard.
#include <dtensor/debug/comm_debug_mode.h>
#include <tests/ops/against_plain.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace against_plain;

using Index = std::optional<at::Tensor>;

constexpr auto kAll = std::nullopt; // index of a dimension that is kept

c10::List<Index> list_of(const std::vector<Index>& items) {
  c10::List<Index> list;
  for (const auto& item : items) {
    list.push_back(item);
  }
  return list;
}

at::Tensor at_index(const at::Tensor& x, const std::vector<Index>& indices) {
  return at::index(x, list_of(indices));
}

at::Tensor put_at(
    const at::Tensor& x,
    const std::vector<Index>& indices,
    const at::Tensor& values,
    bool accumulate = false) {
  return at::index_put(x, list_of(indices), values, accumulate);
}

at::Tensor ints(std::vector<int64_t> values) {
  return at::tensor(values, at::kLong);
}

using IndicesOf = std::function<std::vector<Index>(const TensorList&)>;

// Returns the case x[...], with the indices that `indices` makes from the
// inputs after x.
OpCase lookup(std::string name, TensorList inputs, const IndicesOf& indices) {
  return {
      std::move(name), std::move(inputs), [indices](const TensorList& in) {
        return TensorList{at_index(in[0], indices({in.begin() + 1, in.end()}))};
      }};
}

// Returns the case x[...] = values (or += values). The inputs are x, the
// values, and the inputs of `indices`.
OpCase write(
    std::string name,
    TensorList inputs,
    const IndicesOf& indices,
    bool accumulate = false) {
  return {std::move(name), std::move(inputs), [=](const TensorList& in) {
            return TensorList{put_at(
                in[0], indices({in.begin() + 2, in.end()}), in[1], accumulate)};
          }};
}

std::vector<Index> rows(const TensorList& in) {
  return {in[0]};
}
std::vector<Index> columns(const TensorList& in) {
  return {kAll, in[0]};
}
std::vector<Index> ends(const TensorList& in) {
  return {in[0], kAll, in[1]};
}
std::vector<Index> last_two(const TensorList& in) {
  return {kAll, in[0], in[1]};
}

TEST(TensorIndex, LooksUpAsThePlainOperator) {
  const auto x = numbers({5, 4}, 1);
  const auto cube = numbers({3, 4, 5}, 2);
  const auto repeated = ints({4, 0, -1, 4, -5, 2});
  check_cases({
      lookup("rows", {x, repeated}, rows),
      lookup("table of rows", {x, repeated.view({2, 3})}, rows),
      lookup("columns", {x, ints({3, -4, 3})}, columns),
      lookup("no rows", {x, ints({})}, rows),
      lookup("one row", {x, at::scalar_tensor(3, at::kLong)}, rows),
      lookup("32-bit rows", {x, repeated.to(at::kInt)}, rows),
      lookup("of one row", {numbers({1, 4}, 1), ints({0, -1})}, rows),
      lookup("of no rows", {numbers({0, 4}, 1), ints({})}, rows),
      lookup("of a vector", {numbers({7}, 1), ints({6, 6, -7})}, rows),
      lookup("columns in memory", {numbers({4, 5}, 1).t(), repeated}, rows),
      lookup("ends", {cube, ints({2, 0, -3}), ints({1, 1, -1})}, ends),
      lookup(
          "product",
          {cube, ints({3, -4}).view({2, 1}), ints({4, 0, 4})},
          last_two),
      lookup(
          "in memory",
          {numbers({5, 3, 4}, 2).permute({1, 2, 0}),
           ints({2, 0}),
           ints({1, -5})},
          ends),
      lookup("integers", {at::arange(20).view({5, 4}), repeated}, rows),
      lookup("bools", {x.gt(0), repeated}, rows),
  });
}

TEST(TensorIndex, WritesAsThePlainOperator) {
  const auto x = numbers({5, 4}, 1);
  const auto cube = numbers({3, 4, 5}, 2);
  const auto repeated = ints({4, 0, -1, 4, -5, 2});
  const auto source = numbers({6, 4}, 3);
  for (const bool accumulate : {false, true}) {
    check_cases({
        write("rows", {x, source, repeated}, rows, accumulate),
        write(
            "table of rows",
            {x, source.view({2, 3, 4}), repeated.view({2, 3})},
            rows,
            accumulate),
        write("one row for all", {x, source[0], repeated}, rows, accumulate),
        write(
            "a number for each row",
            {x, source.narrow(1, 0, 1), repeated},
            rows,
            accumulate),
        write("a number", {x, numbers({}, 3), repeated}, rows, accumulate),
        write(
            "columns",
            {x, numbers({5, 3}, 3), ints({3, -4, 3})},
            columns,
            accumulate),
        write("no rows", {x, numbers({0, 4}, 3), ints({})}, rows, accumulate),
        write(
            "one row",
            {x, source[0], at::scalar_tensor(3, at::kLong)},
            rows,
            accumulate),
        write(
            "one column",
            {x, numbers({5}, 3), at::scalar_tensor(-1, at::kLong)},
            columns,
            accumulate),
        write(
            "of one row",
            {numbers({1, 4}, 1), source.narrow(0, 0, 2), ints({0, -1})},
            rows,
            accumulate),
        write(
            "columns in memory",
            {numbers({4, 5}, 1).t(), source, repeated},
            rows,
            accumulate),
        write(
            "ends",
            {cube, numbers({3, 4}, 3), ints({2, 0, -1}), ints({1, 1, 1})},
            ends,
            accumulate),
        write(
            "product",
            {cube,
             numbers({3, 2, 3}, 3),
             ints({3, -4}).view({2, 1}),
             ints({4, 0, 4})},
            last_two,
            accumulate),
        write(
            "integers",
            {at::arange(20).view({5, 4}),
             at::arange(24).view({6, 4}),
             repeated},
            rows,
            accumulate),
        write("bools", {x.gt(0), source.gt(0), repeated}, rows, accumulate),
    });
  }
}

// A layout of x (12, 64), a number of collectives, and the layout of x[i].
struct Lookup {
  Placements x;
  Placements index;
  Placements result;
};

void expect_local_lookup(const DeviceMesh& mesh, const Lookup& c) {
  const auto plain = numbers({12, 64}, 1);
  const auto index = ints({11, 0, -12, 11, 5, 7, -1, 3});
  auto x = leaf(place(plain, mesh, c.x));
  const at::Tensor i = place(index, mesh, c.index);
  auto whole = leaf(plain);
  const auto truth = at_index(whole, {index});
  truth.backward(truth.detach());
  const CountCollectives collectives;
  const auto y = at_index(x, {i});
  EXPECT_EQ(DTensor(y).placements(), c.result);
  EXPECT_EQ(collectives.count(), 0);
  auto of_grad = c.result;
  for (auto& p : of_grad) {
    p = p.is_partial() ? Replicate() : p;
  }
  const auto grad = place(truth.detach(), mesh, of_grad);
  y.backward(grad);
  EXPECT_EQ(collectives.count(), 0);
  EXPECT_EQ(DTensor(x.grad()).placements(), DTensor(x).placements());
  EXPECT_TRUE(same(full_tensor(y).detach(), truth.detach()));
  EXPECT_TRUE(same(full_tensor(x.grad()), whole.grad()));
}

TEST(TensorIndex, LooksUpWithoutCommunication) {
  const Placement sum = Partial();
  for (const int64_t n : {2, 3, 5}) {
    run_ranks(n, [n] {
      const auto mesh = init_device_mesh(at::kCPU, {n});
      expect_local_lookup(mesh, {{Shard(0)}, {Replicate()}, {Partial()}});
      expect_local_lookup(mesh, {{Shard(0, 5)}, {Replicate()}, {Partial()}});
      expect_local_lookup(mesh, {{Shard(1)}, {Replicate()}, {Shard(1)}});
    });
  }
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const Placements none{Replicate(), Replicate()};
    expect_local_lookup(mesh, {{Shard(0), Shard(0)}, none, {sum, sum}});
    expect_local_lookup(mesh, {{Shard(0), Shard(1)}, none, {sum, Shard(1)}});
    expect_local_lookup(
        mesh, {{StridedShard(0, 2), Shard(0)}, none, {sum, sum}});
  });
}

// Each group of ranks looks up its own indices.
TEST(TensorIndex, LooksUpShardedIndicesInShards) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const auto plain = numbers({12, 64}, 1);
    const auto index = ints({11, 0, -12, 11, 5});
    auto x = leaf(place(plain, mesh, {Replicate(), Shard(0)}));
    const at::Tensor i = place(index, mesh, {Shard(0), Replicate()});
    const CommDebugMode comm;
    const auto y = at_index(x, {i});
    EXPECT_EQ(DTensor(y).placements(), (Placements{Shard(0), Partial()}));
    EXPECT_EQ(comm.get_total_counts(), 0);
    y.backward(place(numbers({5, 64}, 2), mesh, {Shard(0), Replicate()}));
    EXPECT_EQ(comm.get_total_counts(), 0);
    EXPECT_EQ(
        DTensor(x.grad()).placements(), (Placements{Partial(), Shard(0)}));
    EXPECT_TRUE(same(full_tensor(y).detach(), at_index(plain, {index})));
    EXPECT_TRUE(same(
        full_tensor(x.grad()),
        put_at(at::zeros_like(plain), {index}, numbers({5, 64}, 2), true)));
  });
}

void expect_local_write(
    const DeviceMesh& mesh,
    const Placements& layout,
    bool accumulate) {
  const auto plain = numbers({12, 64}, 1);
  const auto index = ints({11, 0, -12, 11, 5, 7, -1, 3});
  const auto values = numbers({8, 64}, 2);
  const auto none = Placements(layout.size(), Replicate());
  const auto i = place(index, mesh, none);
  const auto truth = put_at(plain, {index}, values, accumulate);
  auto x = place(plain, mesh, layout);
  const auto v = place(values, mesh, none);
  const auto* memory = to_local(x).const_data_ptr();
  const CountCollectives collectives;
  const auto y = put_at(x, {i}, v, accumulate);
  EXPECT_EQ(DTensor(y).placements(), DTensor(x).placements());
  x.index_put_(list_of({i}), v, accumulate);
  EXPECT_EQ(to_local(x).const_data_ptr(), memory);
  EXPECT_EQ(collectives.count(), 0);
  EXPECT_TRUE(same(full_tensor(y), truth));
  EXPECT_TRUE(same(full_tensor(x), truth));
}

TEST(TensorIndex, WritesWithoutCommunication) {
  for (const bool accumulate : {false, true}) {
    for (const int64_t n : {2, 3, 5}) {
      run_ranks(n, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {n});
        expect_local_write(mesh, {Shard(0)}, accumulate);
        expect_local_write(mesh, {Shard(0, 5)}, accumulate);
      });
    }
    run_ranks(4, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2, 2});
      expect_local_write(mesh, {Shard(0), Shard(0)}, accumulate);
      expect_local_write(mesh, {StridedShard(0, 2), Shard(0)}, accumulate);
      expect_local_write(mesh, {Shard(1), Shard(0)}, accumulate);
    });
  }
}

// Replicated values become terms, and the result stays partial.
TEST(TensorIndex, WritesToPartialTensors) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto index = ints({3, 0, -1});
    const auto values = numbers({3, 2}, 2);
    const auto expect_write = [&](const Placement& layout,
                                  const at::Tensor& where,
                                  const at::Tensor& v,
                                  bool accumulate) {
      auto x = place(numbers({7, 2}, 1), mesh, {layout});
      const auto truth = put_at(full_tensor(x), {where}, v, accumulate);
      const auto i = place(where, mesh, {Replicate()});
      const CountCollectives collectives;
      x.index_put_(
          list_of({i}),
          v.dim() == 0 ? v : place(v, mesh, {Replicate()}),
          accumulate);
      // Ranks compare plain numbers.
      EXPECT_LE(collectives.count(), v.dim() == 0 ? 1 : 0);
      EXPECT_EQ(DTensor(x).placements(), Placements{layout});
      EXPECT_TRUE(same(full_tensor(x), truth));
    };
    const auto mask = numbers({7, 2}, 3).gt(0);
    for (const auto op :
         {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
      SCOPED_TRACE(to_string(op));
      expect_write(Partial(op), index, values, false);
      expect_write(
          Partial(op), mask, at::scalar_tensor(0.5, at::kDouble), false);
    }
    expect_write(Partial(), index, values, true);
    expect_write(Partial(ReduceOp::kAvg), index, values, true);
  });
}

// The gradient of the tensor stays in its shards. The gradient of the
// replicated values is a sum over ranks.
TEST(TensorIndex, WritesWithGradientsOnShards) {
  const auto plain = numbers({12, 64}, 1);
  const auto index = ints({11, 0, 5, 7});
  const auto values = numbers({4, 64}, 2);
  for (const bool accumulate : {false, true}) {
    const auto truth = [&] {
      TensorList leaves{leaf(plain), leaf(values)};
      const auto y = put_at(leaves[0], {index}, leaves[1], accumulate);
      return torch::autograd::grad({y}, leaves, {plain});
    }();
    run_ranks(3, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {3});
      TensorList leaves{
          leaf(place(plain, mesh, {Shard(0)})),
          leaf(place(values, mesh, {Replicate()}))};
      const auto i = place(index, mesh, {Replicate()});
      const auto grad = place(plain, mesh, {Shard(0)});
      const CommDebugMode comm;
      const auto y = put_at(leaves[0], {i}, leaves[1], accumulate);
      const auto grads = torch::autograd::grad({y}, leaves, {grad});
      EXPECT_EQ(comm.get_total_counts(), 0);
      EXPECT_EQ(DTensor(grads[0]).placements(), Placements{Shard(0)});
      EXPECT_EQ(DTensor(grads[1]).placements(), Placements{Partial()});
      EXPECT_TRUE(same(full_tensor(grads[0]), truth[0]));
      EXPECT_TRUE(same(full_tensor(grads[1]), truth[1]));
    });
  }
}

TEST(TensorIndex, AddsShardedValuesToATerm) {
  const auto plain = numbers({5, 4}, 1);
  const auto index = ints({4, 0, -1, 4, -5, 2, 1});
  const auto values = numbers({7, 4}, 3);
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(plain, mesh, {Replicate()});
    const auto i = place(index, mesh, {Shard(0)});
    const auto v = place(values, mesh, {Shard(0)});
    const CountCollectives collectives;
    const auto y = put_at(x, {i}, v, true);
    EXPECT_EQ(collectives.count(), 0);
    EXPECT_EQ(DTensor(y).placements(), Placements{Partial()});
    EXPECT_TRUE(same(full_tensor(y), put_at(plain, {index}, values, true)));
  });
}

TEST(TensorIndex, WritesToViews) {
  const auto plain = numbers({6, 8}, 1);
  const auto index = ints({5, 0, -2, 5});
  const auto values = numbers({4, 8}, 2);
  using Views = std::vector<std::function<void(at::Tensor, Index, at::Tensor)>>;
  const Views writes{
      [](at::Tensor t, const Index& i, const at::Tensor& v) {
        t.narrow(1, 2, 3).index_put_(list_of({i}), v.narrow(1, 0, 3));
      },
      [](at::Tensor t, const Index& i, const at::Tensor& v) {
        t.t().index_put_(list_of({kAll, i}), v.t(), true);
      },
      [](at::Tensor t, const Index& i, const at::Tensor& v) {
        t.narrow(0, 0, 6).view({6, 2, 4}).index_put_(
            list_of({i}), v.view({4, 2, 4}));
      },
      [](at::Tensor t, const Index& i, const at::Tensor& v) {
        t.select(0, 4).index_put_(list_of({i}), v.select(1, 0));
      }};
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& p : {Placement(Shard(0)), Placement(Shard(1))}) {
      for (const auto& fn : writes) {
        auto truth = plain.clone();
        fn(truth, index, values);
        const auto x = place(plain.clone(), mesh, {p});
        fn(x,
           place(index, mesh, {Replicate()}),
           place(values, mesh, {Replicate()}));
        EXPECT_TRUE(same(full_tensor(x), truth));
      }
    }
  });
}

TEST(TensorIndex, RefusesIndicesOutsideAsThePlainOperator) {
  const auto plain = numbers({4, 6}, 1);
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& p : {Placement(Shard(0)), Placement(Shard(1))}) {
      for (const int64_t place_of : {6, 9, -7, 4, -5}) {
        const auto index = ints({0, place_of});
        const auto i = place(index, mesh, {Replicate()});
        const auto x = place(plain, mesh, {p});
        const auto v = place(numbers({}, 1), mesh, {Replicate()});
        const auto error = [&](auto fn) { return error_of(fn); };
        EXPECT_EQ(
            error([&] {
              at_index(x, {kAll, i});
            }),
            error([&] {
              at_index(plain, {kAll, index});
            }));
        EXPECT_EQ(
            error([&] {
              at_index(x, {i, i});
            }),
            error([&] {
              at_index(plain, {index, index});
            }));
        EXPECT_EQ(error([&] { put_at(x, {i}, v); }), error([&] {
                    put_at(plain, {index}, numbers({}, 1));
                  }));
      }
    }
    const auto x = place(plain, mesh, {Shard(0)});
    const auto i = place(ints({4}), mesh, {Replicate()});
    EXPECT_THROW(at_index(x, {i}), c10::IndexError);
    EXPECT_THROW(put_at(x, {i}, x.detach().sum()), c10::IndexError);
  });
}

TEST(TensorIndex, HasSecondDerivatives) {
  const auto plain = numbers({5, 4}, 1);
  const auto index = ints({4, 0, -1, 4});
  const auto values = numbers({4, 4}, 2);
  const auto second = [](const TensorList& leaves, const at::Tensor& i) {
    const auto y = at_index(leaves[0], {i}).pow(3).sum() +
        put_at(leaves[0], {i}, leaves[1].pow(2), true).pow(2).sum();
    const auto first = torch::autograd::grad(
        {y}, leaves, {}, std::nullopt, /*create_graph=*/true);
    return torch::autograd::grad(
        {first[0].pow(2).sum() + first[1].pow(2).sum()}, leaves);
  };
  const auto truth = second({leaf(plain), leaf(values)}, index);
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    for (const auto& p : layouts(2, 1, true)) {
      const auto got = second(
          {leaf(place(plain, mesh, p)),
           leaf(place(values, mesh, {Replicate()}))},
          place(index, mesh, {Replicate()}));
      EXPECT_TRUE(same(full_tensor(got[0]), truth[0]));
      EXPECT_TRUE(same(full_tensor(got[1]), truth[1]));
    }
  });
}

// A mask beside an index counts as the positions of its elements.
TEST(TensorIndex, TakesMasksBesideIndices) {
  const auto x = numbers({5, 4}, 1);
  const auto cube = numbers({3, 4, 5}, 2);
  const auto of_rows = at::tensor({1., -1., 1., 1., -1.}, at::kDouble);
  const auto of_columns = at::tensor({1., -1., 1., 1.}, at::kDouble);
  const auto where = [](const at::Tensor& t) { return t.detach().gt(0); };
  const IndicesOf before = [=](const TensorList& in) {
    return std::vector<Index>{in[0], where(in[1])};
  };
  const IndicesOf behind = [=](const TensorList& in) {
    return std::vector<Index>{where(in[1]), in[0]};
  };
  const IndicesOf apart = [=](const TensorList& in) {
    return std::vector<Index>{in[0], kAll, where(in[1])};
  };
  const IndicesOf alone = [=](const TensorList& in) {
    return std::vector<Index>{where(in[0])};
  };
  check_cases({
      lookup("x[i, mask]", {x, ints({4, 0, -1}), of_columns}, before),
      lookup("x[i, no elements]", {x, ints({}), -of_columns.abs()}, before),
      lookup("x[one, mask]", {x, ints({-2}), of_columns}, before),
      lookup("x[mask, i]", {x, ints({3, 3, -1}), of_rows}, behind),
      lookup("x[i, :, mask]", {cube, ints({2, 0, -1}), of_rows}, apart),
      write(
          "x[i, mask] = v",
          {x, numbers({3}, 3), ints({4, 0, -1}), of_columns},
          before),
      write(
          "x[mask, i] += v",
          {x, numbers({1}, 3), ints({3, 3, -1}), of_rows},
          behind,
          true),
      write(
          "x[i, :, mask] = v",
          {cube, numbers({3, 4}, 3), ints({2, 0, -1}), of_rows},
          apart),
      write("x[mask] = rows", {x, numbers({3, 4}, 3), of_rows}, alone),
      write(
          "x[mask] = elements",
          {x,
           numbers({10}, 3),
           at::arange(20).remainder(2.2).sub(1).view({5, 4})},
          alone),
  });
}

TEST(TensorIndex, GathersTheMaskAlone) {
  const auto plain = numbers({6, 8}, 1);
  const auto index = ints({5, 0, -1});
  const auto mask = at::arange(8).remainder(3).eq(0);
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(plain, mesh, {Shard(0)});
    const auto i = place(index, mesh, {Replicate()});
    const auto v = place(numbers({3}, 2), mesh, {Replicate()});
    for (const auto& p : {Replicate(), Shard(0)}) {
      const at::Tensor m = distribute_tensor(mask, mesh, {p}, std::nullopt);
      const CommDebugMode comm;
      const auto y = at_index(x, {i, m});
      const auto z = put_at(x, {i, m}, v);
      const int gathers = p.is_sharded() ? 2 : 0;
      EXPECT_EQ(
          comm.total({.kind = CollectiveKind::kAllGather}).count, gathers);
      EXPECT_EQ(comm.get_total_counts(), gathers);
      EXPECT_EQ(DTensor(y).placements(), Placements{Partial()});
      EXPECT_EQ(DTensor(z).placements(), Placements{Shard(0)});
      EXPECT_TRUE(same(full_tensor(y), at_index(plain, {index, mask})));
      EXPECT_TRUE(
          same(full_tensor(z), put_at(plain, {index, mask}, numbers({3}, 2))));
    }
  });
}

// A mask of 5 elements on 3 ranks has the same first shards as 6 elements.
TEST(TensorIndex, RefusesIndicesOfOtherShapes) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    const auto x = place(numbers({6}, 1), mesh, {Shard(0)});
    const auto one = place(numbers({}, 2), mesh, {Replicate()});
    const at::Tensor mask = distribute_tensor(
        at::ones({5}, at::kBool), mesh, {Shard(0)}, std::nullopt);
    EXPECT_EQ(
        error_of([&] { put_at(x, {mask}, one); }),
        "[aten::index_put] a mask of shape [5] cannot select from dimensions "
        "of f64[6] on (tp=3): S(0) from 0 on. Pass a mask of their shape.");
    const auto i = place(ints({0}), mesh, {Replicate()});
    EXPECT_EQ(
        error_of([&] {
          put_at(x, {kAll, i}, one);
        }),
        "[aten::index_put] the indices take more dimensions than f64[6] on "
        "(tp=3): S(0) has. Pass at most one index for each dimension.");
  });
}

TEST(TensorIndex, RefusesValuesThatDoNotFitAMask) {
  const auto plain = numbers({4, 3}, 1);
  const auto mask = at::tensor({1, 0, 1, 0}, at::kInt).to(at::kBool);
  const auto values = numbers({3, 3}, 2);
  const auto expected = error_of([&] { put_at(plain, {mask}, values); });
  EXPECT_NE(expected, "");
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto x = place(plain, mesh, {Shard(0)});
    const at::Tensor m = distribute_tensor(mask, mesh, {Replicate()});
    const auto v = place(values, mesh, {Replicate()});
    EXPECT_EQ(error_of([&] { put_at(x, {m}, v); }), expected);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
