// SPDX-License-Identifier: BSD-3-Clause
// Gradients that are averaged while backward goes on, against a plain module
// that sees all rows.
#include <dtensor/data_parallel/replicate.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

Mlp make_mlp() {
  return filled(Mlp(6, 10));
}

at::Tensor my_rows(const at::Tensor& whole, const DeviceMesh& mesh) {
  const auto rows = whole.size(0) / mesh.size();
  return whole.narrow(0, rows * mesh.get_local_rank(), rows);
}

TEST(Replicate, AveragesInBuckets) {
  const auto x = uniform({12, 6}, 3);
  auto plain = make_mlp();
  plain(x).square().mean().backward();
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t bucket_bytes : {1, 600, 1 << 20}) {
      run_ranks(ranks, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"dp"});
        auto mlp = make_mlp();
        replicate(*mlp, mesh, {.bucket_cap_bytes = bucket_bytes});
        torch::optim::SGD optimizer(mlp->parameters(), 0.1);
        for (int pass = 0; pass < 2; ++pass) {
          optimizer.zero_grad(/*set_to_none=*/pass == 0);
          const CommDebugMode comm;
          mlp(my_rows(x, mesh)).square().mean().backward();
          const int64_t buckets = bucket_bytes == 1 ? 4
              : bucket_bytes == 600                 ? 2
                                                    : 1;
          EXPECT_EQ(comm.get_total_counts(), ranks == 1 ? 0 : buckets);
          expect_same_gradients(*mlp, *plain, "buckets");
        }
      });
    }
  }
}

TEST(Replicate, AddsUpUntilItIsToSum) {
  const auto x = uniform({12, 6}, 3);
  auto plain = make_mlp();
  for (int part = 0; part < 3; ++part) {
    plain(x * (part + 1)).square().mean().backward();
  }
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mlp = make_mlp();
    auto replicated = replicate(*mlp, mesh);
    for (int part = 0; part < 3; ++part) {
      replicated.set_requires_gradient_sync(part == 2);
      mlp(my_rows(x, mesh) * (part + 1)).square().mean().backward();
    }
    expect_same_gradients(*mlp, *plain, "accumulated");
  });
}

TEST(Replicate, KeepsLayoutsOfTensorParallelism) {
  const auto x = uniform({12, 6}, 3);
  auto plain = make_mlp();
  plain(x).square().mean().backward();
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto mlp = make_mlp();
    parallelize_module(*mlp, mesh["tp"], mlp_plan());
    replicate(*mlp, mesh["dp"]);
    mlp(my_rows(x, mesh["dp"])).square().mean().backward();
    expect_same_gradients(*mlp, *plain, "with tp");
  });
}

TEST(Replicate, KnowsWhichParametersWereUsed) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mlp = make_mlp();
    replicate(*mlp, mesh);
    auto y = mlp->w1->weight.sum();
    if (mesh.get_rank() == 1) {
      y = y + mlp->w2->weight.sum();
    }
    y.backward();
    expect_close(mlp->w1->weight.grad(), at::ones({10, 6}), "by both");
    expect_close(mlp->w2->weight.grad(), at::full({6, 10}, 0.5), "by one");
    EXPECT_FALSE(mlp->w1->bias.grad().defined());
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
