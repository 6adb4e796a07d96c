// SPDX-License-Identifier: BSD-3-Clause
// CheckReplicas over the backend with which the suite was started.
#include <dtensor/dtensor.h>
#include <tests/parallel/modules.h>
#include <tests/processes/on_ranks.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

struct Run {
  DeviceMesh mesh = init_device_mesh(at::kCPU, {get_world_size()}, {"tp"});
  Mlp mlp = filled(Mlp(4, 12));
  Run() {
    dtensor::manual_seed(1);
    parallelize_module(*mlp, mesh, mlp_plan());
  }
};

bool is_last() {
  return get_rank() == get_world_size() - 1;
}

std::string beginning_of(const std::string& text) {
  return text.substr(0, text.find(':'));
}

TEST_ON_RANKS(ProcessCheckReplicas, AcceptsEqualReplicas) {
  Run run;
  torch::optim::SGD optimizer(run.mlp->parameters(), 0.1);
  CheckReplicas check(*run.mlp, run.mesh);
  for (uint64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    run.mlp(uniform({3, 4}, step)).square().sum().backward();
    clip_grad_norm_(run.mlp->parameters(), 0.5);
    optimizer.step();
    check.finish();
  }
  EXPECT_GT(check.compared(), 10);
}

TEST_ON_RANKS(ProcessCheckReplicas, FindsDifferentData) {
  Run run;
  CheckReplicas check(*run.mlp, run.mesh);
  const auto error = error_of([&] {
    run.mlp(uniform({3, 4}, is_last() ? 2 : 1));
  });
  EXPECT_EQ(
      beginning_of(error),
      get_world_size() == 1
          ? ""
          : "[CheckReplicas] the input of module \"w1\" differs between the "
            "ranks of mesh dimension \"tp\"");
}

TEST_ON_RANKS(ProcessCheckReplicas, FindsAParameterThatDrifts) {
  Run run;
  if (is_last() && get_rank() > 0) {
    DTensor(run.mlp->w2->bias.detach()).to_local().add_(1);
  }
  const auto error = error_of([&] { CheckReplicas check(*run.mlp, run.mesh); });
  EXPECT_EQ(
      beginning_of(error),
      get_world_size() == 1
          ? ""
          : "[CheckReplicas] the parameter \"w2.bias\" differs between the "
            "ranks of mesh dimension \"tp\"");
}

TEST_ON_RANKS(ProcessCheckReplicas, FindsDifferentCallOrders) {
  Run run;
  CheckReplicas check(*run.mlp, run.mesh);
  const auto error = error_of([&] {
    if (is_last() && get_rank() > 0) {
      check.compare(at::ones({2}), run.mesh, "x");
    } else {
      run.mlp->w1(uniform({3, 4}, 1));
    }
  });
  EXPECT_EQ(
      beginning_of(error),
      get_world_size() == 1
          ? ""
          : "[CheckReplicas] the ranks of mesh dimension \"tp\" have "
            "reached different points");
}

} // namespace TEST_SOURCE
} // namespace dtensor
