// SPDX-License-Identifier: BSD-3-Clause
// The output_fn of a boundary gets the module's output including the bias, for
// inputs of any number of dimensions.
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/parallel/boundary.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

enum class Cut { kColumns, kRows };

// Linear with a scaled, nonlinear output, so that a bias added later would
// change the result.
struct Scaled : ParallelStyle {
  Cut cut = Cut::kColumns;
  at::Tensor scale;
  bool use_local_output = true;
  bool names_bias = false; // or leaves the bias to the boundary
  int* calls = nullptr;

  void apply(const StyleTarget& target) const override {
    auto& linear = *target.module.as<torch::nn::Linear>();
    const bool columns = cut == Cut::kColumns;
    set_parameter_placement(
        target, linear.weight, Shard(columns ? 0 : 1), "weight");
    std::vector<at::Tensor> parameters = {linear.weight};
    if (names_bias) {
      set_parameter_placement(
          target,
          linear.bias,
          columns ? Placement(Shard(0)) : Placement(Replicate()),
          "bias");
      parameters.push_back(linear.bias);
    }
    set_parameter_placement(
        target,
        scale,
        columns ? Placement(Shard(0)) : Placement(Replicate()),
        "scale");
    attach_boundary(
        target,
        parameters,
        BoundaryKind::kLinear,
        {.input_layouts = columns ? Placement(Replicate()) : Shard(-1),
         .desired_input_layouts = columns ? Placement(Replicate()) : Shard(-1),
         .output_layouts = columns ? Placement(Shard(-1)) : Replicate(),
         .use_local_output = use_local_output,
         .output_fn = [scale = scale, calls = calls](
                          const at::Tensor&, const at::Tensor& output) {
           *calls += 1;
           return torch::tanh(output) * scale;
         }});
  }
};

const std::vector<std::vector<int64_t>> kInputs = {
    {4},
    {2, 4},
    {2, 3, 4},
    {2, 1, 3, 4}};

struct Truth {
  explicit Truth(at::IntArrayRef sizes)
      : linear(filled(torch::nn::Linear(4, 7))),
        scale(uniform({7}, 6).requires_grad_(true)),
        x(uniform(sizes, 5).requires_grad_(true)),
        y(torch::tanh(linear(x)) * scale),
        weight(uniform(y.sizes(), 7)) {
    y.backward(weight);
  }
  torch::nn::Linear linear;
  at::Tensor scale;
  at::Tensor x;
  at::Tensor y;
  at::Tensor weight; // of the loss: one per element of y
};

void expect_like_plain(
    torch::nn::Linear& mine,
    const Scaled& style,
    const Truth& truth,
    const DeviceMesh& mesh) {
  const auto layout =
      style.cut == Cut::kColumns ? Placement(Shard(-1)) : Replicate();
  const at::Tensor x =
      distribute_tensor(truth.x.detach(), mesh, {Replicate()}, std::nullopt)
          .requires_grad_(true);
  const int before = *style.calls;
  CommDebugMode comm;
  const auto y = mine(x);
  EXPECT_EQ(*style.calls, before + 1);
  // tanh() is nonlinear, so a Partial output is first reduced and then
  // gathered: two collectives.
  EXPECT_EQ(comm.get_total_counts(), style.cut == Cut::kRows ? 2 : 0);
  ASSERT_EQ(is_dtensor(y), !style.use_local_output);
  const bool local = style.use_local_output;
  expect_close(y, local ? part(truth.y, mesh, layout) : truth.y, "y");
  y.backward(
      local ? part(truth.weight, mesh, layout)
            : distribute_tensor(truth.weight, mesh, {layout}, std::nullopt));
  expect_close(x.grad(), truth.x.grad(), "gradient of x");
  expect_same_gradients(*mine, *truth.linear, "linear");
  expect_close(style.scale.grad(), truth.scale.grad(), "gradient of scale");
}

TEST(OutputFn, GetsTheBiasForInputsOfAnyDimensions) {
  for (const auto& sizes : kInputs) {
    for (int options = 0; options < 8; ++options) {
      const Truth truth(sizes);
      run_ranks(2, [&] {
        int calls = 0;
        Scaled style;
        style.cut = options % 2 == 0 ? Cut::kColumns : Cut::kRows;
        style.use_local_output = options / 2 % 2 == 0;
        style.names_bias = options / 4 == 0;
        style.scale = uniform({7}, 6).requires_grad_(true);
        style.calls = &calls;
        SCOPED_TRACE(c10::str("options ", options, ", ", sizes.size(), "-D"));
        const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
        auto mine = filled(torch::nn::Linear(4, 7));
        parallelize_module(*mine, mesh, style);
        expect_like_plain(mine, style, truth, mesh);
      });
    }
  }
}

// A clone has the module's boundary, but its own bias.
TEST(OutputFn, GetsTheBiasOfAClone) {
  const Truth truth({2, 3, 4});
  run_ranks(2, [&] {
    int calls = 0;
    Scaled style;
    style.scale = uniform({7}, 6);
    style.calls = &calls;
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto mine = filled(torch::nn::Linear(4, 7));
    parallelize_module(*mine, mesh, style);
    const auto x = truth.x.detach();
    mine(x);
    torch::nn::Linear copy(
        std::dynamic_pointer_cast<torch::nn::LinearImpl>(mine->clone()));
    {
      const torch::NoGradGuard no_grad;
      copy->bias.mul_(3.0);
      auto other = torch::nn::functional::linear(
          x, truth.linear->weight, 3 * truth.linear->bias);
      const auto expected = torch::tanh(other) * truth.scale;
      for (int i = 0; i < 2; ++i) {
        expect_close(copy(x), part(expected, mesh, Shard(-1)), "clone");
        expect_close(mine(x), part(truth.y, mesh, Shard(-1)), "module");
      }
    }
    // The output is recomputed with the right bias, including its autograd
    // history.
    mine(x);
    copy(x).sum().backward();
    EXPECT_TRUE(copy->bias.grad().defined());
    EXPECT_FALSE(mine->bias.grad().defined());
  });
}

// The bias is included in inference, and in a dtype to which autocast converts.
TEST(OutputFn, GetsTheBiasWithoutGradients) {
  const Truth truth({2, 3, 4});
  run_ranks(2, [&] {
    int calls = 0;
    Scaled style;
    style.scale = uniform({7}, 6);
    style.calls = &calls;
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto mine = filled(torch::nn::Linear(4, 7));
    parallelize_module(*mine, mesh, style);
    {
      const c10::InferenceMode inference;
      expect_close(
          mine(truth.x.detach()), part(truth.y, mesh, Shard(-1)), "inference");
    }
    const torch::NoGradGuard no_grad;
    expect_close(
        mine(truth.x.detach()), part(truth.y, mesh, Shard(-1)), "no_grad");
    EXPECT_EQ(calls, 2);
  });
}

TEST(OutputFn, OfAModuleWithoutABiasIsAsItWas) {
  run_ranks(2, [] {
    int calls = 0;
    Scaled style;
    style.scale = uniform({7}, 6);
    style.calls = &calls;
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto mine =
        filled(torch::nn::Linear(torch::nn::LinearOptions(4, 7).bias(false)));
    const auto plain = mine->weight.detach().clone();
    parallelize_module(*mine, mesh, style);
    const auto x = uniform({2, 3, 4}, 5);
    const auto y = torch::tanh(x.matmul(plain.t())) * uniform({7}, 6);
    expect_close(mine(x), part(y, mesh, Shard(-1)), "y");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
