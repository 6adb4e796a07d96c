// SPDX-License-Identifier: BSD-3-Clause
// Tests of a program that uses dtensor on one machine: ranks as threads,
// expected values, communication counts, one rank of a large world, plans as
// text.
#include "../check.h"
#include "../tutorial/model.h"

#include <dtensor/dtensor.h>
#include <dtensor/testing/expect.h>
#include <dtensor/testing/fake_world.h>
#include <dtensor/testing/same_as_plain.h>
#include <torch/torch.h>

#include <iostream>

using namespace dtensor;
using tutorial::Model;

// [subject]
// Function under test: softmax of x (N, C) along C in any layout of x.
torch::Tensor my_softmax(const torch::Tensor& x) {
  const auto e = (x - x.amax({1}, /*keepdim=*/true)).exp();
  return e / e.sum({1}, /*keepdim=*/true);
}
// [/subject]

// [values]
void matches_a_single_device() {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(torch::kCPU, {ranks}, {"tp"});
      const auto full = testing::seeded_randn({5, 7}, torch::kDouble, 1);
      for (const auto& layout : {Shard(0), Shard(1), Replicate()}) {
        const auto x = distribute_tensor(full, mesh, {layout});
        testing::expect_close(my_softmax(x), torch::softmax(full, 1));
      }
    });
  }
}
// [/values]

// [layouts]
void is_correct_in_every_layout() {
  testing::expect_same_as_plain(
      [](const std::vector<at::Tensor>& x) {
        return std::vector<at::Tensor>{my_softmax(x[0])};
      },
      {testing::seeded_randn({5, 7}, torch::kDouble, 1).requires_grad_()});
}
// [/layouts]

// [communication]
void communicates_twice_if_columns_are_sharded() {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
    const auto full = testing::seeded_randn({4, 6}, torch::kDouble, 1);
    const auto rows = distribute_tensor(full, mesh, {Shard(0)});
    const auto columns = distribute_tensor(full, mesh, {Shard(1)});

    testing::CollectiveLog log;
    testing::expect_layout(my_softmax(rows), "S(0)");
    CHECK_THAT(log.text().empty());
    testing::expect_layout(my_softmax(columns), "S(1)");
    CHECK_THAT(log.text() == "all_reduce, all_reduce");
  });
}
// [/communication]

const ParallelizePlan kPlan = {
    {"*.up", ColwiseParallel()},
    {"*.down", RowwiseParallel()},
    {"head", ColwiseParallel({.output_layouts = Replicate()})},
};

// [counts]
void a_step_has_the_expected_communication() {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(torch::kCPU, {4}, {"tp"});
    Model model;
    parallelize_module(*model, mesh, kPlan);
    const CommDebugMode comm;
    tutorial::loss_of(model, tutorial::next_batch()).backward();
    CHECK_THAT(comm.total({.backward = false}).count == 3);
    CHECK_THAT(comm.total({.backward = true}).count == 3);
    CHECK_THAT(comm.total({.module = "first.down"}).count == 1);
    CHECK_THAT(comm.get_comm_counts()[CollectiveKind::kAllGather] == 1);
  });
}
// [/counts]

// [fake]
void fits_on_many_ranks() {
  testing::with_fake_world(5, 16, [] {
    const auto mesh = init_device_mesh(torch::kCPU, {2, 8}, {"dp", "tp"});
    CHECK_THAT(mesh.get_local_rank("tp") == 5);
    Model model;
    parallelize_module(*model, mesh["tp"], kPlan);
    const auto& weight = model->first->up->weight; // (192, 48)
    CHECK_THAT(DTensor(weight).to_local().size(0) == 192 / 8);
    const auto logits = model(torch::zeros({2, 3}, torch::kLong));
    CHECK_THAT(logits.size(2) == tutorial::kVocab); // no meaningful values
  });
}
// [/fake]

// [golden]
void follows_the_expected_plan() {
  const auto from = parse_spec("f32[8, 6] on (dp=2, tp=2): S(0) P(sum)").spec();
  const auto to = from->with_placements({Shard(0), Replicate()});
  const auto found = plan(from, to);
  CHECK_THAT(
      to_string(*found, from->mesh()) ==
      "all_reduce on \"tp\": S(0) P(sum) -> S(0) R");
  CHECK_THAT(found->collectives() == 1);
}
// [/golden]

// [pure]
void every_rank_holds_the_expected_shard() {
  const auto layout = parse_spec("f32[5, 3] on (tp=4): S(0)");
  CHECK_THAT(layout.spec(2)->local_sizes() == SizesRef({1, 3}));
  CHECK_THAT(layout.spec(3)->local_sizes() == SizesRef({0, 3}));
}
// [/pure]

// [error]
void the_error_names_the_failed_rank() {
  std::string text;
  try {
    run_ranks(2, [](int64_t rank) {
      const auto group = new_group({0, 1}, "tp");
      TORCH_CHECK_VALUE(rank == 0, "no such row");
      group->barrier(); // rank 0 waits for rank 1
    });
  } catch (const c10::ValueError& error) {
    text = error.what_without_backtrace();
  }
  CHECK_THAT(
      text ==
      "[run_ranks] 1 of 2 ranks failed. rank 1: no such row; rank 0 was "
      "terminated in barrier on \"tp\"");
}
// [/error]

int main() {
  matches_a_single_device();
  is_correct_in_every_layout();
  communicates_twice_if_columns_are_sharded();
  a_step_has_the_expected_communication();
  fits_on_many_ranks();
  follows_the_expected_plan();
  every_rank_holds_the_expected_shard();
  the_error_names_the_failed_rank();
  std::cout << "eight tests passed\n";
}
