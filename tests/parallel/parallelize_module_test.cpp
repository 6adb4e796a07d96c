// SPDX-License-Identifier: BSD-3-Clause
// Modules that a pattern matches, and errors of parallelize_module for invalid
// plans.
#include <dtensor/parallel/nn_modules.h>
#include <dtensor/parallel/prepare_module.h>
#include <dtensor/parallel/sequence_parallel.h>
#include <dtensor/parallel/tie_weights.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

// Style that records the names of the modules that it is applied to.
class Notes final : public ParallelStyle {
 public:
  explicit Notes(std::vector<std::string>& names) : names_(&names) {}
  void apply(const StyleTarget& target) const override {
    names_->push_back(target.name);
  }

 private:
  std::vector<std::string>* names_;
};

struct TreeImpl : torch::nn::Module {
  explicit TreeImpl(const std::vector<std::string>& leaves) {
    for (const auto& leaf : leaves) {
      register_module(leaf, torch::nn::Linear(2, 2));
    }
  }
  void add(const std::string& name, const std::vector<std::string>& leaves) {
    register_module(name, std::make_shared<TreeImpl>(leaves));
  }
};

std::shared_ptr<TreeImpl> tree() {
  auto root = std::make_shared<TreeImpl>(std::vector<std::string>{"head"});
  root->add("b0", {"wq", "wk", "w1"});
  root->add("b1", {"wq", "w2", "w-"});
  root->add("x[", {"^"});
  return root;
}

std::vector<std::string> matches(const std::string& pattern) {
  std::vector<std::string> names;
  const auto root = tree();
  const auto mesh = init_device_mesh(at::kCPU, {1}, {"tp"});
  parallelize_module(*root, mesh, {{pattern, Notes(names)}});
  return names;
}

using Names = std::vector<std::string>;

TEST(ParallelizeModuleTest, PatternsMatchAsPythonsFnmatch) {
  EXPECT_EQ(matches(""), (Names{""}));
  EXPECT_EQ(matches("head"), (Names{"head"}));
  EXPECT_EQ(matches("*"), (Names{"head", "b0", "b1", "x["}));
  EXPECT_EQ(matches("b*.wq"), (Names{"b0.wq", "b1.wq"}));
  EXPECT_EQ(
      matches("b?.w?"),
      (Names{"b0.wq", "b0.wk", "b0.w1", "b1.wq", "b1.w2", "b1.w-"}));
  EXPECT_EQ(matches("b0.w[qk]"), (Names{"b0.wq", "b0.wk"}));
  EXPECT_EQ(matches("b?.w[0-9]"), (Names{"b0.w1", "b1.w2"}));
  EXPECT_EQ(matches("b1.w[a-]"), (Names{"b1.w-"}));
  EXPECT_EQ(matches("b0.w[!q]"), (Names{"b0.wk", "b0.w1"}));
  EXPECT_EQ(matches("b[!0].wq"), (Names{"b1.wq"}));
  EXPECT_EQ(matches("x[.*"), (Names{"x[.^"}));   // no set: unterminated
  EXPECT_EQ(matches("x?.[^]"), (Names{"x[.^"})); // ^ does not negate
  EXPECT_EQ(matches("*.w2"), (Names{"b1.w2"}));  // b0 has none: no error
  EXPECT_EQ(matches("*e*d*"), (Names{"head"}));
}

std::string error_of_pattern(const std::string& pattern) {
  return error_of([&] { matches(pattern); });
}

TEST(ParallelizeModuleTest, UnmatchedPatternsNameWhatExists) {
  EXPECT_EQ(
      error_of_pattern("b*.w4"),
      "[parallelize_module] no submodule matches \"b*.w4\". Names at that "
      "level: wq, wk, w1.");
  EXPECT_EQ(
      error_of_pattern("c.wq"),
      "[parallelize_module] no submodule matches \"c.wq\". Names at that "
      "level: head, b0, b1, x[.");
  EXPECT_EQ(
      error_of_pattern("*q"),
      "[parallelize_module] no submodule matches \"*q\". Names at that level: "
      "head, b0, b1, x[.");
  EXPECT_EQ(
      error_of_pattern("head.x"),
      "[parallelize_module] no submodule matches \"head.x\". There are no "
      "names at that level.");
}

TEST(ParallelizeModuleTest, NothingChangesIfAPatternIsWrong) {
  const auto mesh = init_device_mesh(at::kCPU, {1}, {"tp"});
  Mlp mlp(4, 8);
  EXPECT_NE(
      error_of([&] {
        parallelize_module(
            *mlp, mesh, {{"w1", ColwiseParallel()}, {"w3", RowwiseParallel()}});
      }),
      "");
  EXPECT_FALSE(is_dtensor(mlp->w1->weight));
}

TEST(ParallelizeModuleTest, MeshHasOneDimension) {
  run_ranks(2, [] {
    Mlp mlp(4, 8);
    const auto mesh = init_device_mesh(at::kCPU, {1, 2}, {"dp", "tp"});
    EXPECT_EQ(
        error_of([&] { parallelize_module(*mlp, mesh, mlp_plan()); }),
        "[parallelize_module] tensor parallelism runs along one mesh "
        "dimension, but the mesh is (dp=1, tp=2). Pass a slice, such as "
        "mesh[\"tp\"].");
    EXPECT_EQ(
        error_of([&] { parallelize_module(*mlp, DeviceMesh(), mlp_plan()); }),
        "[parallelize_module] no mesh was passed and no mesh is current. Pass "
        "a mesh from init_device_mesh, or set the current one with MeshScope.");
    parallelize_module(*mlp, mesh["tp"], mlp_plan());
    EXPECT_TRUE(is_dtensor(mlp->w1->weight));
  });
}

TEST(ParallelizeModuleTest, EveryPatternHasAStyle) {
  const auto mesh = init_device_mesh(at::kCPU, {1}, {"tp"});
  Mlp mlp(4, 8);
  const std::shared_ptr<const ParallelStyle> none;
  EXPECT_EQ(
      error_of([&] {
        parallelize_module(*mlp, mesh, {{"w1", none}});
      }),
      "[parallelize_module] the plan has no style for \"w1\". Add a style, "
      "such as ColwiseParallel().");
}

TEST(ParallelizeModuleTest, StylesRejectUnsupportedModules) {
  const auto mesh = init_device_mesh(at::kCPU, {1}, {"tp"});
  torch::nn::Sequential model(
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})),
      torch::nn::Dropout());
  EXPECT_EQ(
      error_of([&] {
        parallelize_module(*model, mesh, {{"0", ColwiseParallel()}});
      }),
      "[ColwiseParallel] cannot style module \"0\" of type "
      "torch::nn::LayerNormImpl: only torch::nn::Linear, Embedding, Conv1d "
      "to 3d and ConvTranspose1d to 3d are supported. Style its children "
      "instead.");
  EXPECT_EQ(
      error_of([&] { parallelize_module(*model, mesh, RowwiseParallel()); }),
      "[RowwiseParallel] cannot style the root module of type "
      "torch::nn::SequentialImpl: only torch::nn::Linear, Embedding, Conv1d "
      "to 3d and ConvTranspose1d to 3d are supported. Style its children "
      "instead.");
  EXPECT_EQ(
      error_of([&] {
        parallelize_module(*model, mesh, {{"1", SequenceParallel()}});
      }),
      "[SequenceParallel] module \"1\" of type torch::nn::DropoutImpl has no "
      "hooks, and is not a torch::nn::LayerNorm. Declare it with "
      "DTENSOR_MODULE instead of TORCH_MODULE (dtensor::hooked::Dropout for "
      "torch::nn::Dropout, dtensor::hooked::LayerNorm), or set fused_norm if "
      "its weight goes into torch::rms_norm or torch::layer_norm.");
  torch::nn::Embedding limited(torch::nn::EmbeddingOptions(8, 4).max_norm(1.0));
  for (const bool by_rows : {false, true}) {
    EXPECT_EQ(
        error_of([&] {
          if (by_rows) {
            parallelize_module(*limited, mesh, RowwiseParallel());
          } else {
            parallelize_module(*limited, mesh, ColwiseParallel());
          }
        }),
        std::string(by_rows ? "[RowwiseParallel]" : "[ColwiseParallel]") +
            " cannot style the root module of type torch::nn::EmbeddingImpl "
            "with max_norm = 1: forward would write to rows of a sharded "
            "weight. Leave max_norm out, or leave the module as it is.");
    EXPECT_FALSE(is_dtensor(limited->weight));
  }
}

TEST(ParallelizeModuleTest, AModuleIsStyledOnce) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    Mlp mlp(4, 8);
    parallelize_module(*mlp, mesh, mlp_plan());
    EXPECT_EQ(
        error_of([&] {
          parallelize_module(*mlp, mesh, {{"w1", ColwiseParallel()}});
        }),
        "[parallelize_module] module \"w1\" has a style already. Style a "
        "module once.");
    EXPECT_EQ(
        error_of([&] {
          parallelize_module(*mlp, mesh, {{"w1", RowwiseParallel()}});
        }),
        "[parallelize_module] module \"w1\": its weight is already a DTensor, "
        "f32[8, 4] on (tp=2): S(0), but the style requires S(1) on (tp=2). "
        "Give tied parameters one layout, and style a module once.");
  });
}

TEST(ParallelizeModuleTest, TiedModulesHaveOneStyle) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    Mlp mlp(4, 4);
    tie_weights(*mlp->w2, *mlp->w1);
    EXPECT_EQ(
        error_of([&] { parallelize_module(*mlp, mesh, mlp_plan()); }),
        "[parallelize_module] module \"w2\": its weight is already a DTensor, "
        "f32[4, 4] on (tp=2): S(0), but the style requires S(1) on (tp=2). "
        "Give tied parameters one layout, and style a module once.");
    EXPECT_FALSE(is_dtensor(mlp->w1->weight));
    parallelize_module(*mlp, mesh, {{"w1", ColwiseParallel()}});
    EXPECT_EQ(
        error_of([&] {
          const ColwiseParallel gathers({.output_layouts = Replicate()});
          parallelize_module(*mlp, mesh, {{"w2", gathers}});
        }),
        "[parallelize_module] module \"w2\" is tied to module \"w1\" and "
        "styled differently. Give both the same style.");
  });
}

// In each of these plans the last entry throws.
TEST(ParallelizeModuleTest, NothingChangesIfAStyleRefuses) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const PrepareModuleOutput whole(
        {.output_layouts = {Shard(-1)},
         .desired_output_layouts = {Replicate()}});
    torch::nn::Sequential model(
        torch::nn::Linear(4, 4),
        hooked::Dropout(0),
        torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    auto plain = filled(torch::nn::Linear(4, 4));
    filled(model);
    const auto x = uniform({2, 4}, 3);
    const std::vector<ParallelizePlan> plans = {
        {{"0", ColwiseParallel()}, {"1", whole}, {"2", RowwiseParallel()}},
        {{"0", ColwiseParallel()}, {"1", whole}, {"0", ColwiseParallel()}},
        {{"0", ColwiseParallel()}, {"1", whole}, {"0", RowwiseParallel()}},
        {{"0", ColwiseParallel()}, {"1", whole}, {"1", whole}},
        {{"0", ColwiseParallel()}, {"1", whole}, {"2", whole}},
        {{"0", ColwiseParallel()},
         {"1", whole},
         {"2", RowwiseParallel({.overlap_chunks = 0})}}};
    const auto& linear = model->ptr(0)->as<torch::nn::Linear>();
    for (const auto& plan : plans) {
      EXPECT_NE(error_of([&] { parallelize_module(*model, mesh, plan); }), "");
      EXPECT_FALSE(is_dtensor(linear->weight));
      EXPECT_FALSE(is_dtensor(linear->bias));
    }
    parallelize_module(
        *model,
        mesh,
        {{"0", ColwiseParallel()}, {"1", whole}, {"2", SequenceParallel()}});
    const auto y = model->ptr(1)->as<Hooked<torch::nn::DropoutImpl>>()->forward(
        linear->forward(x));
    expect_close(y, plain(x), "output");
  });
}

TEST(ParallelizeModuleTest, AModuleIsStyledOnceInOnePlan) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    Mlp mlp(4, 8);
    EXPECT_EQ(
        error_of([&] {
          parallelize_module(
              *mlp,
              mesh,
              {{"w1", ColwiseParallel()}, {"*", ColwiseParallel()}});
        }),
        "[parallelize_module] module \"w1\" has a style already. Style a "
        "module once.");
    EXPECT_EQ(
        error_of([&] {
          parallelize_module(
              *mlp,
              mesh,
              {{"w1", ColwiseParallel()}, {"w1", RowwiseParallel()}});
        }),
        "[parallelize_module] module \"w1\": its weight is already a DTensor, "
        "f32[8, 4] on (tp=2): S(0), but the style requires S(1) on (tp=2). "
        "Give tied parameters one layout, and style a module once.");
    // A second plan that names a styled module again changes nothing.
    parallelize_module(*mlp, mesh, {{"w1", ColwiseParallel()}});
    EXPECT_NE(
        error_of([&] {
          parallelize_module(
              *mlp,
              mesh,
              {{"w2", RowwiseParallel()}, {"w1", ColwiseParallel()}});
        }),
        "");
    EXPECT_FALSE(is_dtensor(mlp->w2->weight));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
