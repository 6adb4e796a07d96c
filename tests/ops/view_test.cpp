// SPDX-License-Identifier: BSD-3-Clause
// Views keep the sharding without communication, or throw.
#include "tests/ops/against_plain.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

std::vector<std::vector<int64_t>> shapes_of(int64_t numel) {
  std::vector<std::vector<int64_t>> all{{numel}};
  for (int64_t a = 1; a <= numel; ++a) {
    if (numel % a != 0) {
      continue;
    }
    all.push_back({a, numel / a});
    for (int64_t b = 1; b <= numel / a; ++b) {
      if (numel / a % b == 0) {
        all.push_back({a, b, numel / a / b});
      }
    }
  }
  return all;
}

bool says_that_it_cannot(const std::string& text, const char* op) {
  return text.find(std::string("[") + op + "] cannot keep the sharding of ") ==
      0 &&
      text.find("Redistribute the input to [") != std::string::npos;
}

// Views `x` as `to`. Expects exactly the plain result without communication, or
// the error. Returns true if the view succeeded.
bool check_view(
    const at::Tensor& plain,
    const at::Tensor& x,
    at::IntArrayRef to,
    Failures& failures) {
  const auto where = [&] {
    std::ostringstream text;
    text << *DTensor(x).spec() << " as " << to;
    return text.str();
  };
  at::Tensor seen;
  {
    CountCollectives collectives;
    try {
      seen = x.view(to);
    } catch (const c10::Error& e) {
      if (!says_that_it_cannot(e.what_without_backtrace(), "aten::view")) {
        failures.add(where() + ": " + e.what_without_backtrace());
      }
      return false;
    }
    if (collectives.count() > 0) {
      failures.add(where() + " communicated");
    }
  }
  const DTensor result(seen);
  if (!result.to_local().is_alias_of(DTensor(x).to_local())) {
    failures.add(where() + " is no view");
  }
  if (!at::equal(result.full_tensor(), plain.view(to))) {
    failures.add(where() + " is wrong in " + to_string(result.placements()));
  }
  return true;
}

void check_all_views(std::vector<int64_t> mesh_shape, int64_t numel) {
  Failures failures;
  int kept = 0;
  int refused = 0;
  run_ranks(c10::multiply_integers(mesh_shape), [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, mesh_shape);
    for (const auto& from : shapes_of(numel)) {
      const auto plain = numbers(from, 1);
      for (const auto& layout : layouts(plain.dim(), mesh_shape.size(), true)) {
        const at::Tensor x = place(plain, mesh, layout);
        for (const auto& to : shapes_of(numel)) {
          const bool could = check_view(plain, x, to, failures);
          if (rank == 0) {
            ++(could ? kept : refused);
          }
        }
      }
    }
  });
  EXPECT_EQ(failures.text(), "");
  EXPECT_GT(kept, 0);
  if (c10::multiply_integers(mesh_shape) == 1) {
    EXPECT_EQ(refused, 0);
  }
}

TEST(View, IsExactOrRefusedOnOneMeshDimension) {
  check_all_views({1}, 6);
  check_all_views({2}, 12);
  check_all_views({3}, 12);
  check_all_views({3}, 5);
}

TEST(View, IsExactOrRefusedOnTwoMeshDimensions) {
  check_all_views({2, 2}, 6);
  check_all_views({2, 3}, 6);
}

TEST(View, HasTheGradientsOfPlainTensors) {
  const auto x = numbers({4, 6}, 1);
  const auto y = numbers({2, 3, 4}, 2);
  check_cases({
      unary(
          "add a dim",
          x,
          [](auto& t) {
            return t.view({4, 1, 6});
          }),
      unary(
          "reshape",
          y.transpose(0, 1),
          [](auto& t) {
            return t.transpose(0, 1).reshape({2, 3, 1, 4});
          }),
  });
}

// The gradient of a view may have any layout. It is redistributed, because a
// program cannot redistribute it during a backward pass.
TEST(View, TakesGradientsInAnyLayout) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto plain = numbers({15}, 1);
    at::Tensor x = leaf(place(plain, mesh, {Replicate()}));
    const auto g = numbers({5, 3}, 2);
    x.view({5, 3}).backward(place(g, mesh, {Shard(0)}));
    EXPECT_TRUE(at::equal(DTensor(x.grad()).full_tensor(), g.view(15)));
    // Outside of a backward pass, a view keeps a sharding between rows.
    const at::Tensor s = place(g, mesh, {Shard(0)});
    EXPECT_EQ(DTensor(s.reshape({15})).placements()[0], Shard(0, 3));
  });
}

TEST(View, ExplainsLostSharding) {
  const std::string heads =
      " If the dim contains heads, shard between heads: set `multiple_of` of "
      "ColwiseParallel to the features of a head.";
  run_ranks(4, [&] {
    const auto tp = init_device_mesh(at::kCPU, {4}, {"tp"});
    const at::Tensor x = place(numbers({12}, 1), tp, {Shard(0)});
    EXPECT_EQ(
        error_of([&] {
          x.view({3, 4});
        }),
        "[aten::view] cannot keep the sharding of f64[12] on (tp=4): S(0) as "
        "[3, 4]: the shards of dim 0 on mesh dim \"tp\" do not correspond to "
        "shards of any dim of the new shape. Redistribute the input to "
        "[Replicate()] first." +
            heads);
    EXPECT_EQ(
        error_of([&] {
          x.unflatten(0, {3, -1});
        }),
        "[aten::view] cannot keep the sharding of f64[12] on (tp=4): S(0) as "
        "[3, 4]: the shards of dim 0 on mesh dim \"tp\" do not correspond to "
        "shards of any dim of the new shape. Redistribute the input to "
        "[Replicate()] first." +
            heads);
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    const at::Tensor y = place(numbers({4, 6}, 1), mesh, {Shard(0), Shard(1)});
    EXPECT_EQ(
        error_of([&] {
          y.view({4, 3, 2});
        }),
        "[aten::view] cannot keep the sharding of f64[4, 6] on (dp=2, tp=2): "
        "S(0) S(1) as [4, 3, 2]: the shards of dim 1 on mesh dim \"tp\" do not "
        "correspond to shards of any dim of the new shape. Redistribute the "
        "input to [Shard(0), Replicate()] first." +
            heads);
  });
}

TEST(View, IsUnderstoodByCompositeOperators) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto plain = numbers({2, 4, 6}, 1);
    const at::Tensor x = place(plain, mesh, {Shard(2)});
    CountCollectives collectives;
    const DTensor flat(x.flatten(0, 1));
    EXPECT_EQ(to_string(flat.placements()), "S(1)");
    const DTensor all(x.flatten());
    EXPECT_EQ(to_string(all.placements()), "SS(0, sf=8)");
    EXPECT_EQ(
        to_string(DTensor(all.unflatten(0, {2, 4, -1})).placements()), "S(2)");
    EXPECT_EQ(to_string(DTensor(x.view({2, 4, 2, -1})).placements()), "S(2)");
    EXPECT_EQ(to_string(DTensor(x.view_as(x)).placements()), "S(2)");
    EXPECT_EQ(collectives.count(), 0);
    EXPECT_TRUE(at::equal(all.full_tensor(), plain.flatten()));
    EXPECT_TRUE(at::equal(flat.full_tensor(), plain.flatten(0, 1)));
  });
}

// view() never copies, even if the global strides differ from those of the
// local tensor.
TEST(View, NeverCopies) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto columns = numbers({6, 2}, 1).t(); // 2 x 6, strides 1 and 2
    FromLocalOptions options;
    options.shape = {4, 6};
    options.stride = {6, 1};
    const at::Tensor x =
        DTensor::from_local(columns, mesh, {Shard(0)}, options);
    EXPECT_EQ(
        error_of([&] { x.view({24}); }),
        "[aten::view] this rank's local tensor, of shape [2, 6] and strides "
        "[1, 2], cannot be viewed as [12] without a copy. Clone it in the "
        "contiguous memory format first.");
    const DTensor copy(x.clone(at::MemoryFormat::Contiguous).view({24}));
    EXPECT_TRUE(at::equal(copy.to_local(), columns.flatten()));
  });
}

TEST(View, ReinterpretsBytesAndComplexNumbers) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto plain = numbers({5, 4}, 1);
    const at::Tensor x = place(plain, mesh, {Shard(0)});
    const at::Tensor pairs = place(numbers({5, 2}, 1), mesh, {Shard(0)});
    CountCollectives collectives;
    const DTensor bytes(x.view(at::kLong));
    EXPECT_EQ(to_string(*bytes.spec()), "i64[5, 4] on (tp=2): S(0)");
    const DTensor halves(x.view(at::kInt));
    EXPECT_EQ(to_string(*halves.spec()), "i32[5, 8] on (tp=2): S(0)");
    const at::Tensor numbers_of = at::view_as_complex(pairs);
    EXPECT_EQ(
        to_string(*DTensor(numbers_of).spec()), "c128[5] on (tp=2): S(0)");
    EXPECT_EQ(
        to_string(*DTensor(at::view_as_real(numbers_of)).spec()),
        "f64[5, 2] on (tp=2): S(0)");
    EXPECT_EQ(collectives.count(), 0);
    EXPECT_TRUE(at::equal(bytes.full_tensor(), plain.view(at::kLong)));
    EXPECT_TRUE(at::equal(halves.full_tensor(), plain.view(at::kInt)));
  });
}

// x (B, T, C) S(2) -> heads (B, H, T, C/H) S(1) -> (B, T, C) S(2)
at::Tensor through_heads(const at::Tensor& x) {
  const auto b = x.size(0);
  const auto t = x.size(1);
  const auto heads = x.view({b, t, 4, -1}).transpose(1, 2).contiguous();
  return heads.transpose(1, 2).contiguous().view({b, t, x.size(2)});
}

TEST(View, GoesThroughAttentionWithoutCommunication) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto plain = numbers({2, 3, 8}, 1);
    at::Tensor x = leaf(place(plain, mesh, {Shard(2)}));
    CountCollectives collectives;
    const at::Tensor y = through_heads(x);
    EXPECT_EQ(to_string(*DTensor(y).spec()), "f64[2, 3, 8] on (tp=2): S(2)");
    const at::Tensor z =
        x.view({2, 3, 4, 2}).transpose(1, 2).transpose(1, 2).reshape({2, 3, 8});
    EXPECT_EQ(to_string(DTensor(z).placements()), "S(2)");
    // Heads before time: a copy, where each rank has the rows of its heads.
    const at::Tensor w =
        x.view({2, 3, 4, 2}).transpose(1, 2).reshape({8, 3, 2});
    EXPECT_EQ(to_string(DTensor(w).placements()), "SS(0, sf=2)");
    y.backward(y.detach());
    EXPECT_EQ(collectives.count(), 0);
    EXPECT_TRUE(at::equal(DTensor(y).full_tensor(), plain));
    EXPECT_TRUE(at::equal(DTensor(z).full_tensor(), plain));
    EXPECT_TRUE(at::equal(DTensor(x.grad()).full_tensor(), plain));
    EXPECT_EQ(to_string(DTensor(x.grad()).placements()), "S(2)");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
