// SPDX-License-Identifier: BSD-3-Clause
// Operators that gather their operands, in all layouts.
#include <tests/ops/against_plain.h>
#include <tests/ops/oracle.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace against_plain;
using testing::Collectives;

// Returns whole numbers from 0 to `end` - 1.
at::Tensor places(at::IntArrayRef sizes, int64_t end, uint64_t seed) {
  return numbers(sizes, seed).mul(8).to(at::kLong).remainder(end);
}

OpCase without_gradient(OpCase c) {
  c.differentiable = false;
  return c;
}

TEST(Gathered, Elements) {
  check_cases({
      {"put",
       {numbers({5, 4}, 1), places({3, 2}, 20, 2), numbers({3, 2}, 3)},
       [](const TensorList& in) {
         return TensorList{at::put(in[0], in[1], in[2], /*accumulate=*/true)};
       }},
      without_gradient(unary(
          "vander",
          numbers({5}, 1),
          [](const auto& x) { return at::vander(x, 3); })),
      without_gradient(unary(
          "linalg_vander",
          numbers({3, 4}, 1),
          [](const auto& x) { return at::linalg_vander(x); })),
      unary(
          "pdist",
          numbers({5, 4}, 1),
          [](const auto& x) { return at::pdist(x); }),
      without_gradient(unary(
          "nonzero_static",
          numbers({5, 4}, 1),
          [](const auto& x) { return at::nonzero_static(x.gt(2), 7, -1); })),
  });
}

TEST(Gathered, CopiesAndBlocks) {
  check_cases({
      unary(
          "expand_copy",
          numbers({5, 1}, 1),
          [](const auto& x) {
            return at::expand_copy(x, {5, 3});
          }),
      {"block_diag",
       {numbers({3, 2}, 1), numbers({2, 2}, 2)},
       [](const TensorList& in) { return TensorList{at::block_diag(in)}; }},
      {"diagonal_scatter",
       {numbers({4, 4}, 1), numbers({4}, 2)},
       [](const TensorList& in) {
         return TensorList{at::diagonal_scatter(in[0], in[1])};
       }},
  });
}

TEST(Gathered, LeastSquares) {
  testing::SameAsPlainOptions options;
  options.layouts = 30;
  testing::expect_same_as_plain(
      [](const TensorList& in) -> TensorList {
        return {std::get<0>(at::linalg_lstsq(in[0], in[1]))};
      },
      {testing::variable({2, 5, 3}, 1), testing::variable({2, 5, 2}, 2)},
      options);
}

TEST(Gathered, Histograms) {
  const auto count = [](const TensorList& in) {
    auto [counts, edges] = at::histogramdd(in[0], {3, 2});
    edges.insert(edges.begin(), counts);
    return edges;
  };
  check_cases({without_gradient({"histogramdd", {numbers({7, 2}, 1)}, count})});
}

TEST(Gathered, Layers) {
  check_cases({
      {"_trilinear",
       {numbers({5, 3}, 1), numbers({2, 3, 4}, 2), numbers({5, 4}, 3)},
       [](const TensorList& in) {
         return TensorList{
             at::_trilinear(in[0], in[1], in[2], {1, 3}, {0}, {1, 2}, {2, 3})};
       }},
      {"conv_tbc",
       {numbers({6, 2, 3}, 1), numbers({3, 3, 4}, 2), numbers({4}, 3)},
       [](const TensorList& in) {
         return TensorList{at::conv_tbc(in[0], in[1], in[2], 1)};
       }},
      without_gradient(unary(
          "_masked_softmax",
          numbers({3, 4}, 1),
          [](const auto& x) {
            return at::_masked_softmax(x, x.gt(20), 1, 2);
          })),
      unary(
          "fake_quantize_per_tensor_affine",
          numbers({3, 4}, 1).to(at::kFloat),
          [](const auto& x) {
            return at::fake_quantize_per_tensor_affine(x, 0.5, 2, 0, 9);
          }),
  });
}

TEST(Gathered, TruthOfAllElements) {
  for (const double bound : {-100.0, 0.0, 100.0}) {
    check_cases(
        {without_gradient(unary(
             "_is_all_true",
             numbers({5, 4}, 1),
             [&](const auto& x) { return at::_is_all_true(x.gt(bound)); })),
         without_gradient(
             unary("_is_any_true", numbers({5, 4}, 1), [&](const auto& x) {
               return at::_is_any_true(x.gt(bound));
             }))});
  }
}

// The written tensor keeps its layout, with and without recorded gradients.
TEST(Gathered, InPlaceAndOut) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto full = numbers({5, 4}, 1);
    const auto index = places({3}, 20, 2);
    const auto source = numbers({3}, 3);
    const auto truth = full.put(index, source);
    const at::Tensor rows = place(index, mesh, {Shard(0)});
    const at::Tensor values = place(source, mesh, {Shard(0)});
    for (const bool records : {false, true}) {
      const at::AutoGradMode mode(records);
      const auto y = (leaf(place(full, mesh, {Shard(1)})) * 1);
      y.put_(rows, values);
      EXPECT_EQ(DTensor(y).placements(), Placements{Shard(1)});
      EXPECT_TRUE(same(DTensor(y).full_tensor().detach(), truth));
    }
    const torch::NoGradGuard no_grad;
    at::Tensor out = place(at::zeros_like(full), mesh, {Shard(0)});
    at::put_out(out, place(full, mesh, {Shard(1)}), rows, values);
    EXPECT_EQ(DTensor(out).placements(), Placements{Shard(0)});
    EXPECT_TRUE(same(DTensor(out).full_tensor(), truth));
  });
}

// embedding() with max_norm scales rows of the table in place.
TEST(Gathered, EmbeddingOfLimitedNorm) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto full = numbers({5, 4}, 1);
    const auto ids = places({3}, 5, 2);
    auto expected = full.clone();
    at::embedding_renorm_(expected, ids, 2.0, 2.0);
    for (const auto& layout : {Shard(0), Shard(1)}) {
      at::Tensor table = place(full, mesh, {layout});
      at::embedding_renorm_(table, place(ids, mesh, {Shard(0)}), 2.0, 2.0);
      EXPECT_EQ(DTensor(table).placements(), Placements{layout});
      EXPECT_TRUE(same(DTensor(table).full_tensor(), expected));
    }
  });
}

// No warning and no scope are needed, and a scope counts nothing.
TEST(Gathered, IsNotAMissingRule) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(numbers({4, 4}, 1), mesh, {Shard(0)});
    Collectives collectives;
    at::vander(x.select(1, 0));
    EXPECT_EQ(collectives.take(), "all_gather 16");
    const auto scope = on_missing_rule(Replicate());
    at::pdist(x);
    EXPECT_TRUE(scope.costs().empty());
    const ExplicitRedistributionContext only_explicit;
    EXPECT_NE(
        error_of([&] { at::pdist(x); }).find("Implicit redistribution"),
        std::string::npos);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
