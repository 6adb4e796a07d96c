// SPDX-License-Identifier: BSD-3-Clause
// Tests sampling in examples/llama from logits that stay sharded: its choices
// equal those from full logits, and ranks send little.
#include "examples/llama/sample.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace llama {
namespace TEST_SOURCE {

at::Tensor some_logits(uint64_t seed, double spread) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn({4, 1000}, generator, at::kDouble) * spread;
}

dtensor::DTensor cut(
    const at::Tensor& logits,
    const dtensor::DeviceMesh& mesh) {
  return dtensor::distribute_tensor(
      logits, mesh, {dtensor::Shard(1)}, std::nullopt);
}

// Chooses from the full logits, as Python programs do.
at::Tensor chosen_from_whole(const at::Tensor& logits, const Sampling& how) {
  const auto p = (logits.to(at::kDouble) / how.temperature).softmax(-1);
  const auto order = p.argsort(/*stable=*/true, -1, true);
  auto kept = p.gather(-1, order);
  const auto before = kept.cumsum(-1) - kept;
  kept = kept.masked_fill(before >= how.top_p, 0);
  const auto sum = kept.cumsum(-1);
  const auto target =
      torch::rand({p.size(0), 1}, at::kDouble) * sum.slice(1, -1);
  return order.gather(-1, (sum <= target).sum(-1, true)).squeeze(-1);
}

TEST(Sampling, EqualsSamplingOfTheFullLogits) {
  for (const int64_t ranks : {1, 2, 3, 7}) {
    dtensor::run_ranks(ranks, [&] {
      const auto mesh = dtensor::init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for (const double spread : {0.1, 3.0, 20.0}) { // flat to peaked
        for (const double top_p : {0.01, 0.5, 0.9, 1.0}) {
          for (uint64_t seed = 0; seed < 5; ++seed) {
            const auto logits = some_logits(seed, spread);
            const Sampling how{
                0.7, top_p, at::detail::createCPUGenerator(seed)};
            const auto mine = next_tokens(cut(logits, mesh), how);
            torch::manual_seed(seed);
            EXPECT_TRUE(at::equal(mine, chosen_from_whole(logits, how)))
                << ranks << " ranks, " << spread << ", " << top_p;
          }
        }
      }
    });
  }
}

// Returns the collectives of one choice, such as "all_gather 2, 64 bytes".
std::string sent_for(const dtensor::DTensor& logits, const Sampling& how) {
  const dtensor::CommDebugMode comm;
  next_tokens(logits, how);
  std::string text;
  for (const auto& record : comm.records()) {
    text += std::string(text.empty() ? "" : "; ") +
        std::string(dtensor::to_string(record.kind)) + " " +
        std::to_string(record.count) + ", " +
        std::to_string(record.payload_bytes) + " bytes";
  }
  return text;
}

// Ranks send their local results and no logits. For 4 rows of 1000 logits, a
// rank has at least 8000 bytes of logits. It sends the maximum and its index,
// or 64 candidates with their indices and a sum in float64.
TEST(Sampling, SendsWhatRanksHaveFoundAndNoLogits) {
  for (const int64_t ranks : {2, 3, 4}) {
    dtensor::run_ranks(ranks, [&] {
      const auto mesh = dtensor::init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for (const double spread : {3.0, 20.0}) {
        const auto logits = cut(some_logits(1, spread), mesh);
        EXPECT_EQ(sent_for(logits, {}), "all_gather 1, 64 bytes");
        EXPECT_EQ(
            sent_for(logits, {0.7, 0.5}),
            "all_gather 1, " + std::to_string(4 * (2 * 64 + 1) * 8) + " bytes");
      }
    });
  }
}

// Logits are gathered for a nearly flat distribution, because the first
// candidates of each rank do not determine the choice.
TEST(Sampling, GathersLogitsThatAreNearlyFlat) {
  dtensor::run_ranks(2, [] {
    const auto mesh = dtensor::init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto sent = sent_for(cut(some_logits(1, 0.1), mesh), {0.7, 0.9});
    EXPECT_EQ(
        sent,
        "all_gather 2, " + std::to_string(4 * (2 * 64 + 1) * 8 + 4 * 500 * 8) +
            " bytes");
  });
}

} // namespace TEST_SOURCE
} // namespace llama
