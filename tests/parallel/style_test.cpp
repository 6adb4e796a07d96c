// SPDX-License-Identifier: BSD-3-Clause
// Styles that consist of other styles.
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/parallel/style.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

// Styles two children of a module, and then refuses it if `fails`.
struct Pair final : ParallelStyle {
  explicit Pair(bool fails) : fails_(fails) {}
  void apply(const StyleTarget& target) const override {
    apply_together(target, [&](const StyleTarget& all) {
      const auto children = target.module.named_children();
      ColwiseParallel().apply(all.child_target("w1", *children["w1"]));
      RowwiseParallel().apply(all.child_target("w2", *children["w2"]));
      TORCH_CHECK(!fails_, "refused: ", all.describe());
    });
  }
  bool fails_;
};

TEST(CompositeStyles, ChangeAllChildrenOrNone) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto input = uniform({3, 8}, 1);
    auto mlp = filled(Mlp(8, 12));
    const auto truth = mlp(input).detach();
    EXPECT_THAT(
        error_of([&] { parallelize_module(*mlp, mesh, Pair(true)); }),
        ::testing::StartsWith("refused: the root module of type "));
    for (const auto& parameter : mlp->parameters()) {
      EXPECT_FALSE(is_dtensor(parameter));
    }
    parallelize_module(*mlp, mesh, Pair(false));
    EXPECT_TRUE(is_dtensor(mlp->named_parameters()["w1.weight"]));
    EXPECT_TRUE(at::allclose(mlp(input), truth, 1e-10, 1e-10));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
