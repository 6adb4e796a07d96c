// SPDX-License-Identifier: BSD-3-Clause
// Tests of indexing with tensors.
#include "tests/ops/against_plain.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

at::Tensor indices(at::IntArrayRef sizes, int64_t below, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randint(0, below, sizes, generator, at::kLong);
}

c10::List<std::optional<at::Tensor>> list_of(
    std::vector<std::optional<at::Tensor>> items) {
  c10::List<std::optional<at::Tensor>> list;
  for (auto& item : items) {
    list.push_back(std::move(item));
  }
  return list;
}

OpCase not_differentiable(OpCase c) {
  c.differentiable = false;
  return c;
}

OpCase of_two(
    std::string name,
    at::Tensor a,
    at::Tensor b,
    std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> fn) {
  return {
      std::move(name),
      {std::move(a), std::move(b)},
      [fn = std::move(fn)](const TensorList& in) {
        return TensorList{fn(in[0], in[1])};
      }};
}

TEST(Indexing, LooksUp) {
  const auto x = numbers({5, 4}, 1);
  check_cases({
      of_two(
          "index_select 0",
          x,
          indices({3}, 5, 2),
          [](auto& t, auto& i) { return t.index_select(0, i); }),
      of_two(
          "index_select 1",
          x,
          indices({6}, 4, 2),
          [](auto& t, auto& i) { return t.index_select(-1, i); }),
      of_two(
          "index_select scalar",
          x,
          indices({}, 4, 2),
          [](auto& t, auto& i) { return t.index_select(1, i); }),
      of_two(
          "gather",
          x,
          indices({5, 3}, 4, 2),
          [](auto& t, auto& i) { return t.gather(1, i); }),
      of_two(
          "gather some",
          x,
          indices({2, 4}, 5, 2),
          [](auto& t, auto& i) { return t.gather(0, i); }),
      of_two(
          "gather less",
          x,
          indices({3, 3}, 4, 2),
          [](auto& t, auto& i) { return t.gather(1, i); }),
      of_two(
          "take_along_dim",
          x,
          indices({5, 4}, 4, 2),
          [](auto& t, auto& i) { return at::take_along_dim(t, i, 1); }),
  });
}

TEST(Indexing, IndexesWithTensors) {
  using torch::indexing::Slice;
  const auto x = numbers({3, 4, 5}, 1);
  check_cases({
      of_two(
          "x[i]",
          x,
          indices({6}, 3, 2),
          [](auto& t, auto& i) { return t.index({i}); }),
      of_two(
          "x[:, i]",
          x,
          indices({2, 3}, 4, 2),
          [](auto& t, auto& i) {
            return t.index({Slice(), i});
          }),
      of_two(
          "x[i, :, i]",
          x,
          indices({4}, 3, 2),
          [](auto& t, auto& i) {
            return t.index({i, Slice(), i});
          }),
      {"x[:, i, j]",
       {x, indices({2, 1}, 4, 2), indices({3}, 5, 3)},
       [](auto& in) {
         return TensorList{in[0].index({Slice(), in[1], in[2]})};
       },
       1},
      of_two(
          "x[0, 1:3]",
          x,
          indices({}, 3, 2),
          [](auto& t, auto&) {
            return t.index({0, Slice(1, 3)});
          }),
  });
}

TEST(Indexing, Scatters) {
  const auto x = numbers({5, 4}, 1);
  const auto at_all = [](at::Tensor like) {
    return at::argsort(like, 1, false); // a permutation of each row
  };
  const auto i = at_all(numbers({5, 4}, 3));
  const auto three =
      [&](std::string name, at::Tensor index, at::Tensor src, auto fn) {
        return OpCase{
            std::move(name),
            {x, std::move(src), std::move(index)},
            [fn](const TensorList& in) {
              return TensorList{fn(in[0], in[2], in[1])};
            },
            2};
      };
  const auto src = numbers({5, 4}, 2);
  const auto rows = at::tensor({4, 1}, at::kLong);
  check_cases({
      three(
          "scatter",
          i,
          src,
          [](auto& t, auto& n, auto& s) { return t.scatter(1, n, s); }),
      three(
          "scatter value",
          i,
          src,
          [](auto& t, auto& n, auto&) { return t.scatter(1, n, 3.0); }),
      three(
          "scatter_add",
          i,
          src,
          [](auto& t, auto& n, auto& s) { return t.scatter_add(1, n, s); }),
      // Autograd has no gradient for an index smaller than src.
      not_differentiable(three(
          "scatter_add part",
          i.slice(0, 0, 3),
          src,
          [](auto& t, auto& n, auto& s) { return t.scatter_add(1, n, s); })),
      three(
          "scatter_reduce",
          i,
          src,
          [](auto& t, auto& n, auto& s) {
            return t.scatter_reduce(1, n, s, "amax");
          }),
      three(
          "index_add",
          rows,
          numbers({2, 4}, 2),
          [](auto& t, auto& n, auto& s) { return t.index_add(0, n, s); }),
      three(
          "index_copy",
          rows,
          numbers({2, 4}, 2),
          [](auto& t, auto& n, auto& s) { return t.index_copy(0, n, s); }),
      three(
          "index_fill",
          rows,
          src,
          [](auto& t, auto& n, auto&) { return t.index_fill(0, n, 2.0); }),
      three(
          "index_put",
          rows,
          numbers({2, 4}, 2),
          [](auto& t, auto& n, auto& s) {
            return t.index_put(list_of({n}), s);
          }),
      three(
          "index_put add",
          rows,
          numbers({4}, 2),
          [](auto& t, auto& n, auto& s) {
            return t.index_put(list_of({n}), s, true);
          }),
      three(
          "index_put column",
          at::tensor({0, 2}, at::kLong),
          numbers({5, 2}, 2),
          [](auto& t, auto& n, auto& s) {
            return t.index_put(list_of({std::nullopt, n}), s);
          }),
  });
}

TEST(Indexing, LooksUpWithoutCommunication) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    at::Tensor x = leaf(place(numbers({5, 4}, 1), mesh, {Shard(1)}));
    const at::Tensor i = place(indices({3}, 5, 2), mesh, {Replicate()});
    CountCollectives collectives;
    const at::Tensor y = x.index_select(0, i);
    EXPECT_EQ(to_string(DTensor(y).placements()), "S(1)");
    const at::Tensor z = x.index({i});
    EXPECT_EQ(to_string(DTensor(z).placements()), "S(1)");
    z.backward(z.detach());
    EXPECT_EQ(to_string(DTensor(x.grad()).placements()), "S(1)");
    EXPECT_EQ(collectives.count(), 0);
  });
}

TEST(Indexing, WritesInPlaceInTheLayoutOfSelf) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto plain = numbers({5, 4}, 1);
    const auto rows = at::tensor({4, 1}, at::kLong);
    const auto values = numbers({2, 4}, 2);
    at::Tensor x = place(plain, mesh, {Shard(1)});
    const at::Tensor i = place(rows, mesh, {Replicate()});
    x.index_put_({i}, place(values, mesh, {Replicate()}));
    EXPECT_EQ(to_string(DTensor(x).placements()), "S(1)");
    EXPECT_TRUE(at::equal(
        DTensor(x).full_tensor(), plain.index_put(list_of({rows}), values)));
    at::Tensor y = place(plain, mesh, {Shard(0)});
    y.index_fill_(0, i, 1.0); // along the sharded dimension
    EXPECT_EQ(to_string(DTensor(y).placements()), "S(0)");
    EXPECT_TRUE(
        at::equal(DTensor(y).full_tensor(), plain.index_fill(0, rows, 1.0)));
    at::Tensor z = place(plain, mesh, {Partial()});
    EXPECT_EQ(
        error_of([&] { z.index_fill_(0, i, 1.0); }),
        "[aten::index_fill_.int_Scalar] the in-place operator would change the "
        "layout of self, f64[5, 4] on (tp=2): P(sum), on mesh dim \"tp\"; the "
        "operands are f64[5, 4] on (tp=2): P(sum), i64[2] on (tp=2): R. "
        "Redistribute self first, or use the out-of-place operator.");
  });
}

TEST(Indexing, FillsNoIndexOutOfRange) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    for (const int64_t size : {1, 4, 5}) {
      for (const auto& p : {Placement(Shard(0)), Placement(Replicate())}) {
        const at::Tensor x = place(at::zeros({size, 2}), mesh, {p});
        for (int64_t index = -2 * size - 3; index < size + 3; ++index) {
          const auto plain = at::tensor({index}, at::kLong);
          const at::Tensor i = place(plain, mesh, {Replicate()});
          SCOPED_TRACE(c10::str(to_string(p), " ", size, " ", index));
          if (index < -size || index >= size) {
            EXPECT_THROW(x.index_fill(0, i, 1.0), c10::IndexError);
            EXPECT_THROW(x.index_fill_(0, i, 1.0), c10::IndexError);
          } else {
            EXPECT_TRUE(at::equal(
                DTensor(x.index_fill(0, i, 1.0)).full_tensor(),
                at::zeros({size, 2}).index_fill(0, plain, 1.0)));
          }
        }
      }
    }
  });
}

TEST(Indexing, WritesWhereAMaskIs) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto plain = numbers({5, 4}, 1);
    at::Tensor x = place(plain, mesh, {Shard(0)});
    const at::Tensor mask = distribute_tensor(plain > 1, mesh, {Shard(0)});
    CountCollectives collectives;
    x.index_put_({mask}, at::zeros({}, at::kDouble));
    EXPECT_EQ(collectives.count(), 0);
    EXPECT_TRUE(
        at::equal(DTensor(x).full_tensor(), plain.masked_fill(plain > 1, 0)));
  });
}

TEST(Indexing, SelectsByAMaskDifferentiably) {
  const auto plain = numbers({5, 4}, 1);
  const auto mask = plain > 1;
  auto leaf = plain.clone().requires_grad_();
  leaf.masked_select(mask).pow(3).sum().backward();
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& p : {Replicate(), Shard(0), Shard(1)}) {
      for (const auto& q : {Replicate(), Shard(0), Shard(1)}) {
        auto x = place(plain, mesh, {p}).detach().requires_grad_();
        const at::Tensor m = distribute_tensor(mask, mesh, {q});
        x.masked_select(m).pow(3).sum().backward();
        EXPECT_TRUE(at::equal(DTensor(x.grad()).full_tensor(), leaf.grad()));
        EXPECT_EQ(DTensor(x.grad()).placements()[0], p);
      }
    }
  });
}

TEST(Indexing, GathersOneElement) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto plain = numbers({5}, 1);
    const auto index = at::scalar_tensor(3, at::kLong);
    const at::Tensor i = distribute_tensor(index, mesh, {Replicate()});
    for (const auto& p : {Replicate(), Shard(0), Partial()}) {
      const auto x = place(plain, mesh, {p});
      EXPECT_TRUE(at::equal(
          DTensor(x.gather(0, i)).full_tensor(), plain.gather(0, index)));
      const auto y = place(plain[0], mesh, {Replicate()});
      const at::Tensor zero =
          distribute_tensor(at::zeros({3}, at::kLong), mesh, {Shard(0)});
      EXPECT_TRUE(at::equal(
          DTensor(y.gather(0, zero)).full_tensor(),
          plain[0].gather(0, at::zeros({3}, at::kLong))));
      const at::Tensor one = distribute_tensor(index, mesh, {Replicate()});
      EXPECT_TRUE(at::equal(
          DTensor(x.scatter(0, one, 7.0)).full_tensor(),
          plain.scatter(0, index, 7.0)));
      EXPECT_TRUE(at::equal(
          DTensor(x.index_select(0, one)).full_tensor(),
          plain.index_select(0, index)));
    }
  });
}

// A partial index of one element is reduced. Sharding it would be cheaper, but
// it has no dimension to shard. Many lengths are tested, because a read past
// the end of the sizes would return arbitrary memory.
TEST(Indexing, GathersOneElementAtASum) {
  for (int64_t length = 4; length < 20; ++length) {
    run_ranks(2, [&](int64_t rank) {
      const auto mesh = init_device_mesh(at::kCPU, {2});
      const auto plain = numbers({length}, 1);
      for (const auto& p : {Replicate(), Shard(0), Partial()}) {
        const auto x = place(plain, mesh, {p});
        const at::Tensor sum = DTensor::from_local(
            at::scalar_tensor(rank + 1, at::kLong), mesh, {Partial()});
        EXPECT_TRUE(
            at::equal(DTensor(x.gather(0, sum)).full_tensor(), plain[3]));
      }
    });
  }
}

TEST(Indexing, GathersWhatDependsOnTheData) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto plain = numbers({5, 4}, 1);
    const at::Tensor x = place(plain, mesh, {Shard(0)});
    const at::Tensor mask = distribute_tensor(plain > 1, mesh, {Shard(0)});
    EXPECT_TRUE(at::equal(
        DTensor(x.masked_select(mask)).full_tensor(),
        plain.masked_select(plain > 1)));
    EXPECT_TRUE(
        at::equal(full_tensor(x.index({mask})), plain.index({plain > 1})));
    const at::Tensor whole = DTensor(x).redistribute({Replicate()});
    const at::Tensor whole_mask = DTensor(mask).redistribute({Replicate()});
    EXPECT_TRUE(at::equal(
        DTensor(whole.index({whole_mask})).full_tensor(),
        plain.index({plain > 1})));
    EXPECT_TRUE(at::equal(
        DTensor(whole.masked_select(whole_mask)).full_tensor(),
        plain.masked_select(plain > 1)));
  });
}

bool is_sharded(const at::Tensor& t) {
  const auto p = DTensor(t).placements();
  return std::any_of(p.begin(), p.end(), [](auto q) { return q.is_sharded(); });
}

// The elements that a condition selects from `plain`, placed in all layouts.
void expect_selected(const at::Tensor& plain, const DeviceMesh& mesh) {
  const auto all = mesh.ndim() == 1
      ? std::vector<Placements>{{Shard(0)}, {Shard(1)}, {Partial()}}
      : std::vector<Placements>{
            {Shard(0), Shard(0)},
            {Shard(1), Shard(0)},
            {Replicate(), Shard(0)},
            {Shard(1), Replicate()},
            {Partial(), Shard(1)}};
  for (const auto& p : all) {
    const at::Tensor x = place(plain, mesh, p);
    for (const auto& limit : {-100.0, 1.0, 2.5, 100.0}) {
      const auto found = at::nonzero(x > limit);
      EXPECT_TRUE(at::equal(full_tensor(found), at::nonzero(plain > limit)));
      const auto some = x.masked_select(x > limit);
      EXPECT_TRUE(
          at::equal(full_tensor(some), plain.masked_select(plain > limit)));
      EXPECT_EQ(to_local(some).size(0), DTensor(some).spec()->local_sizes()[0]);
      const bool was_sharded = is_sharded(x > limit);
      EXPECT_EQ(is_sharded(found), was_sharded);
      EXPECT_EQ(is_sharded(some), is_sharded(x) || was_sharded);
    }
    const auto column = plain.select(1, 0).unsqueeze(1);
    EXPECT_TRUE(at::equal(
        full_tensor(x.masked_select(place(column, mesh, p) > 1)),
        plain.masked_select(column > 1)));
  }
}

TEST(Indexing, SelectsOnShards) {
  for (const int64_t rows : {1, 2, 5, 16}) {
    const auto plain = numbers({rows, 4}, 1);
    run_ranks(
        3, [&] { expect_selected(plain, init_device_mesh(at::kCPU, {3})); });
    run_ranks(4, [&] {
      expect_selected(plain, init_device_mesh(at::kCPU, {2, 2}));
    });
  }
}

// Takes one all_gather of counts, and moves the rows whose rank changes.
TEST(Indexing, MovesOnlyWhatIsSelected) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto plain = at::arange(100, at::kDouble);
    const at::Tensor x = place(plain, mesh, {Shard(0)});
    const at::Tensor mask = distribute_tensor(plain.lt(20), mesh, {Shard(0)});
    CountCollectives collectives;
    const at::Tensor some = x.masked_select(mask);
    EXPECT_EQ(collectives.count(), 2);
    EXPECT_EQ(to_local(some).size(0), 10);
    EXPECT_EQ(DTensor(some).placements()[0], Shard(0));
    EXPECT_TRUE(at::equal(full_tensor(some), plain.slice(0, 0, 20)));
  });
}

// x[mask] = values, where each selected row or element gets the same values.
TEST(Indexing, WritesEqualValuesWhereAMaskIs) {
  const auto put = [](const TensorList& in) {
    return TensorList{at::index_put(
        in[0], list_of({at::Tensor(in[1].detach()).gt(0)}), in[2])};
  };
  check_cases(
      {{"rows", {numbers({5, 4}, 1), numbers({5}, 2), numbers({4}, 3)}, put},
       {"one row",
        {numbers({5, 4}, 1), numbers({5}, 2), numbers({1, 4}, 3)},
        put},
       {"elements",
        {numbers({5, 4}, 1), numbers({5, 4}, 2), numbers({1}, 3)},
        put},
       {"a row for each",
        {numbers({5, 4}, 1),
         at::tensor({1., -1., 1., 1., -1.}, at::kDouble),
         numbers({3, 4}, 3)},
        put}});
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const TensorList shards{
        place(numbers({5, 4}, 1), mesh, {Shard(0)}),
        place(numbers({5}, 2), mesh, {Shard(0)}),
        place(numbers({4}, 3), mesh, {Replicate()})};
    const CountCollectives collectives;
    EXPECT_EQ(DTensor(put(shards)[0]).placements(), Placements{Shard(0)});
    EXPECT_EQ(collectives.count(), 0);
  });
}

// Ranks add their rows to a term of a sum.
TEST(Indexing, AddsShardedRowsWithoutCommunication) {
  const auto x = numbers({5, 4}, 1);
  const auto index = indices({7}, 5, 2);
  const auto source = numbers({7, 4}, 3);
  check_cases({{"index_add", {x, index, source}, [](const TensorList& in) {
                  return TensorList{at::index_add(in[0], 0, in[1], in[2], 2)};
                }}});
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor self = place(x, mesh, {Replicate()});
    const at::Tensor places = place(index, mesh, {Shard(0)});
    const at::Tensor rows = place(source, mesh, {Shard(0)});
    const CountCollectives collectives;
    const auto y = self.index_add(0, places, rows);
    EXPECT_EQ(collectives.count(), 0);
    EXPECT_EQ(DTensor(y).placements(), Placements{Partial()});
    EXPECT_TRUE(same(DTensor(y).full_tensor(), x.index_add(0, index, source)));
  });
}

using NamedFns =
    std::vector<std::pair<const char*, at::Tensor (*)(const TensorList&)>>;

// Functions of a tensor, of indices of its rows, of a source, and of an index
// for each element of the source.
const NamedFns& writes_of_rows() {
  static const NamedFns all{
      {"index_add", [](auto& in) { return in[0].index_add(0, in[1], in[2]); }},
      {"index_copy",
       [](auto& in) { return in[0].index_copy(0, in[1], in[2]); }},
      {"index_fill", [](auto& in) { return in[0].index_fill(0, -in[1], 3); }},
      {"index_reduce",
       [](auto& in) { return in[0].index_reduce(0, in[1], in[2], "amax"); }},
      {"scatter", [](auto& in) { return in[0].scatter(0, in[3], in[2]); }},
      {"scatter value", [](auto& in) { return in[0].scatter(0, in[3], 3); }},
      {"scatter_add",
       [](auto& in) { return in[0].scatter_add(0, in[3], in[2]); }},
      {"scatter_reduce",
       [](auto& in) { return in[0].scatter_reduce(0, in[3], in[2], "amin"); }}};
  return all;
}

const NamedFns& lookups_of_rows() {
  static const NamedFns all{
      {"index_select", [](auto& in) { return in[0].index_select(0, in[1]); }},
      {"gather", [](auto& in) { return in[0].gather(0, in[3]); }}};
  return all;
}

// Each rank looks up and writes the rows of its shard. Rank 2 has no rows.
TEST(Indexing, WorksOnShardsOfTheIndexedDim) {
  const auto rows = at::tensor({3, 0, 1}, at::kLong);
  const TensorList plain{
      numbers({4, 64}, 1),
      rows,
      numbers({3, 64}, 2),
      rows.unsqueeze(1).expand({3, 64}).contiguous()};
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    TensorList placed;
    for (const auto& t : plain) {
      const Placement p = placed.empty() ? Placement(Shard(0)) : Replicate();
      placed.push_back(leaf(place(t, mesh, {p})));
    }
    const auto check = [&](const NamedFns& functions, const Placement& layout) {
      for (const auto& [name, fn] : functions) {
        const CountCollectives collectives;
        const auto y = fn(placed);
        EXPECT_EQ(collectives.count(), 0) << name;
        EXPECT_EQ(DTensor(y).placements(), Placements{layout}) << name;
        EXPECT_TRUE(same(full_tensor(y).detach(), fn(plain))) << name;
      }
    };
    check(writes_of_rows(), Shard(0));
    check(lookups_of_rows(), Partial());
  });
}

TEST(Indexing, RefusesIndicesOutsideTheShardedDim) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(numbers({4, 2}, 1), mesh, {Shard(0)});
    for (const int64_t i : {4, 9, -1}) {
      const at::Tensor index =
          place(at::tensor({i}, at::kLong), mesh, {Replicate()});
      const auto wide = index.unsqueeze(1);
      EXPECT_THROW(x.index_select(0, index), c10::Error);
      EXPECT_THROW(x.gather(0, wide), c10::Error);
      EXPECT_THROW(x.scatter(0, wide, 1), c10::Error);
      EXPECT_THROW(x.index_copy(0, index, x.slice(0, 0, 1)), c10::Error);
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
