// SPDX-License-Identifier: BSD-3-Clause
// Bags of embeddings: tables sharded by rows and columns, sharded ids.
#include <tests/ops/against_plain.h>
#include <tests/ops/oracle.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace against_plain;
using testing::Collectives;

constexpr int64_t kSum = 0;
constexpr int64_t kMean = 1;
constexpr int64_t kMax = 2;

const auto kTable = numbers({6, 4}, 1);
const auto kIds = at::tensor({0, 5, 5, 2, 1, 3, 4});
const auto kOffsets = at::tensor({0, 4, 4, 6}); // one bag is empty

OpCase bags(const std::string& name, TensorList operands, const auto& call) {
  return {name, std::move(operands), [call](const TensorList& in) {
            return TensorList{std::get<0>(call(in))};
          }};
}

TEST(EmbeddingBag, SumsMeansAndMaxima) {
  std::vector<OpCase> cases;
  for (const auto mode : {kSum, kMean, kMax}) {
    cases.push_back(bags(
        "mode " + std::to_string(mode),
        {kTable, kIds, kOffsets},
        [mode](const TensorList& in) {
          return at::embedding_bag(in[0], in[1], in[2], false, mode);
        }));
  }
  check_cases(cases);
}

TEST(EmbeddingBag, WithFactorsAndPadding) {
  check_cases(
      {bags(
           "factors",
           {kTable, kIds, kOffsets, numbers({7}, 2)},
           [](const TensorList& in) {
             return at::embedding_bag(
                 in[0], in[1], in[2], false, kSum, false, in[3]);
           }),
       bags(
           "factors and padding",
           {kTable, kIds, kOffsets, numbers({7}, 2)},
           [](const TensorList& in) {
             return at::embedding_bag(
                 in[0], in[1], in[2], false, kSum, false, in[3], false, 2);
           }),
       bags(
           "mean without padding",
           {kTable, kIds, kOffsets},
           [](const TensorList& in) {
             return at::embedding_bag(
                 in[0], in[1], in[2], false, kMean, false, {}, false, -1);
           }),
       bags(
           "last offset",
           {kTable, kIds, at::tensor({0, 3, 7})},
           [](const TensorList& in) {
             return at::embedding_bag(
                 in[0], in[1], in[2], false, kSum, false, {}, true);
           }),
       bags(
           "gradients by frequency",
           {kTable, kIds, kOffsets},
           [](const TensorList& in) {
             return at::embedding_bag(in[0], in[1], in[2], true, kSum);
           })});
}

// All results but the first do not depend on the layout.
TEST(EmbeddingBag, HasAllResults) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto mode : {kSum, kMean, kMax}) {
      const auto [y, bag_of_id, sizes, maxima] =
          at::embedding_bag(kTable, kIds, kOffsets, false, mode);
      const auto [y2, bag_of_id2, sizes2, maxima2] = at::embedding_bag(
          place(kTable, mesh, {Shard(0)}),
          place(kIds, mesh, {Shard(0)}),
          place(kOffsets, mesh, {Replicate()}),
          false,
          mode);
      EXPECT_TRUE(same(DTensor(y2).full_tensor(), y));
      EXPECT_TRUE(same(DTensor(bag_of_id2).full_tensor(), bag_of_id));
      EXPECT_TRUE(same(DTensor(sizes2).full_tensor(), sizes));
      EXPECT_TRUE(same(DTensor(maxima2).full_tensor(), maxima));
    }
  });
}

// A table sharded by rows or columns is not gathered.
TEST(EmbeddingBag, LeavesTheTableWhereItIs) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto run = [&](const Placement& table, const Placement& ids) {
      Collectives collectives;
      const auto y = std::get<0>(at::embedding_bag(
          place(kTable, mesh, {table}),
          place(kIds, mesh, {ids}),
          place(kOffsets, mesh, {Replicate()})));
      return to_string(DTensor(y).placements()[0]) + ": " + collectives.take();
    };
    EXPECT_EQ(run(Shard(0), Replicate()), "P(sum): ");
    EXPECT_EQ(run(Shard(1), Replicate()), "S(1): ");
    // The ids are few numbers.
    const auto bytes = get_rank() == 0 ? "16" : "12";
    EXPECT_EQ(
        run(Replicate(), Shard(0)), std::string("P(sum): all_gather ") + bytes);
  });
}

TEST(EmbeddingBag, OfAModule) {
  torch::manual_seed(0);
  torch::nn::EmbeddingBag module(
      torch::nn::EmbeddingBagOptions(6, 4).mode(torch::kMean));
  module->to(at::kDouble);
  const auto ids = kIds.narrow(0, 0, 6).view({3, 2});
  const auto truth = module(ids);
  truth.pow(2).sum().backward();
  const auto gradient = module->weight.grad().clone();
  const auto weight = module->weight.detach().clone();
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& layout : {Shard(0), Shard(1)}) {
      torch::nn::EmbeddingBag mine(module->options);
      mine->weight = leaf(place(weight, mesh, {layout}));
      const auto y = mine(place(ids, mesh, {Shard(0)}));
      EXPECT_TRUE(at::allclose(DTensor(y).full_tensor(), truth));
      y.pow(2).sum().backward();
      EXPECT_TRUE(
          at::allclose(DTensor(mine->weight.grad()).full_tensor(), gradient));
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
