// SPDX-License-Identifier: BSD-3-Clause
// layout_table: sizes compared with manual calculations, and sums over the
// ranks.
#include <dtensor/debug/layout_table.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

TEST(LayoutTable, HasALineForEachParameter) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto mlp = filled(Mlp(4, 8));
    parallelize_module(*mlp, mesh, mlp_plan());
    EXPECT_EQ(
        layout_table(*mlp),
        "parameter  tensor     layout  mesh    here    bytes here  bytes\n"
        "w1.weight  f64[8, 4]  S(0)    (tp=2)  [4, 4]         128    256\n"
        "w1.bias    f64[8]     S(0)    (tp=2)  [4]             32     64\n"
        "w2.weight  f64[4, 8]  S(1)    (tp=2)  [4, 4]         128    256\n"
        "w2.bias    f64[4]     R       (tp=2)  [4]             32     32\n"
        "total                                                320    608\n");
  });
}

struct TwoParameters : torch::nn::Module {
  TwoParameters(const at::Tensor& weight, const at::Tensor& bias) {
    register_parameter("weight", weight);
    register_parameter("bias", bias);
  }
};

TEST(LayoutTable, ShowsLocalShardsOfThisRank) {
  run_ranks(4, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    const TwoParameters model(
        distribute_tensor(uniform({3, 5}, 1), mesh, {Shard(0), Shard(1)}),
        uniform({3}, 2));
    // Local shapes for three rows and five columns of 8-byte elements.
    const std::vector<std::string> parts = {
        "[2, 3]          48",
        "[2, 2]          32",
        "[1, 3]          24",
        "[1, 2]          16"};
    const auto table = layout_table(model);
    EXPECT_NE(
        table.find(
            "weight     f64[3, 5]  S(0) S(1)  (dp=2, tp=2)  " +
            parts[static_cast<size_t>(rank)] + "    120\n"),
        std::string::npos)
        << table;
    EXPECT_NE(table.find("bias       f64[3]     plain"), std::string::npos)
        << table;
  });
}

TEST(LayoutTable, CountsATensorOnceAndBuffersToo) {
  torch::nn::Sequential model(
      torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)),
      torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)),
      torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(2).affine(false)));
  auto& first = *model->ptr<torch::nn::LinearImpl>(0);
  auto& second = *model->ptr<torch::nn::LinearImpl>(1);
  second.weight = first.weight;
  second.register_parameter("again", first.weight);
  const auto table = layout_table(*model);
  EXPECT_NE(
      table.find("1.again                f32[2, 2]  is 0.weight"),
      std::string::npos)
      << table;
  // The sum has two weights of 16 bytes, two means and variances of 8, a count
  // of 8.
  EXPECT_NE(table.find("2.running_mean"), std::string::npos) << table;
  EXPECT_NE(table.find("56     56\n"), std::string::npos) << table;
}

} // namespace TEST_SOURCE
} // namespace dtensor
