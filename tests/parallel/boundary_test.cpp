// SPDX-License-Identifier: BSD-3-Clause
// Boundaries attached by custom styles, and the autograd nodes that a style's
// boundary adds.
#include <dtensor/debug/check_replicas.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/parallel/boundary.h>
#include <tests/graph_nodes.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
using test_text::nodes_below;

// Linear sharded by columns, with its output scaled by a learned vector.
class Scaled : public ParallelStyle {
 public:
  explicit Scaled(at::Tensor scale, bool use_local_output = true)
      : scale_(std::move(scale)),
        use_local_output_(use_local_output) {}

  void apply(const StyleTarget& target) const override {
    auto& linear = *target.module.as<torch::nn::Linear>();
    set_parameter_placement(target, linear.weight, Shard(0), "weight");
    set_parameter_placement(target, scale_, Shard(0), "scale");
    attach_boundary(
        target,
        {linear.weight},
        BoundaryKind::kLinear,
        {.output_layouts = Shard(-1),
         .use_local_output = use_local_output_,
         .output_fn = [scale = scale_](
                          const at::Tensor& input, const at::Tensor& output) {
           return output * scale + input.sum();
         }});
  }

 private:
  at::Tensor scale_;
  bool use_local_output_;
};

torch::nn::Linear without_bias(int64_t in, int64_t out) {
  return filled(
      torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)));
}

TEST(AttachBoundary, CallsTheOutputFnOnDTensors) {
  for (const bool use_local_output : {true, false}) {
    run_ranks(3, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {3});
      for (const auto& sizes :
           std::vector<std::vector<int64_t>>{{2, 4}, {2, 3, 4}}) {
        const auto whole = uniform(sizes, 5);
        const auto x = whole.clone().requires_grad_(true);
        const auto plain = without_bias(4, 7);
        const auto factor = uniform({7}, 6).requires_grad_(true);
        const auto truth =
            torch::nn::functional::linear(x, plain->weight) * factor + x.sum();
        const auto weight = uniform(truth.sizes(), 7);
        truth.backward(weight);

        auto mine = without_bias(4, 7);
        const auto scale = uniform({7}, 6).requires_grad_(true);
        const auto input = whole.clone().requires_grad_(true);
        parallelize_module(*mine, mesh, Scaled(scale, use_local_output));
        const auto y = mine(input);
        ASSERT_EQ(is_dtensor(y), !use_local_output);
        expect_close(
            y, use_local_output ? part(truth, mesh, Shard(-1)) : truth, "y");
        y.backward(
            use_local_output
                ? part(weight, mesh, Shard(-1))
                : distribute_tensor(weight, mesh, {Shard(-1)}, std::nullopt));
        expect_close(input.grad(), x.grad(), "input");
        expect_close(mine->weight.grad(), plain->weight.grad(), "weight");
        expect_close(scale.grad(), factor.grad(), "scale");
        EXPECT_EQ(layout_of(scale.grad()), Placement(Shard(0)));
      }
    });
  }
}

class Wrong : public ParallelStyle {
 public:
  explicit Wrong(std::function<void(const StyleTarget&)> apply)
      : apply_(std::move(apply)) {}
  void apply(const StyleTarget& target) const override {
    apply_(target);
  }

 private:
  std::function<void(const StyleTarget&)> apply_;
};

TEST(AttachBoundary, IsSilentIfReplicasAreCompared) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto linear = without_bias(4, 6);
    const auto factor = uniform({6}, 6);
    const auto x = uniform({2, 4}, 5);
    const auto truth =
        torch::nn::functional::linear(x, linear->weight.detach()) * factor +
        x.sum();
    parallelize_module(
        *linear, mesh, Scaled(factor.clone(), /*use_local_output=*/false));
    CheckReplicas check(*linear, mesh);
    expect_close(linear(x).detach(), truth, "output");
    EXPECT_GT(check.compared(), 0);
  });
}

TEST(AttachBoundary, NeedsAParameter) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto linear = without_bias(4, 4);
    EXPECT_THAT(
        [&] {
          parallelize_module(*linear, mesh, Wrong([](const auto& target) {
            attach_boundary(target, {}, BoundaryKind::kLinear, {});
          }));
        },
        ::testing::ThrowsMessage<c10::ValueError>(::testing::HasSubstr(
            "[attach_boundary] the boundary of the root module has no "
            "parameter to attach to. Pass the weight of the module.")));
  });
}

TEST(AttachBoundary, OfAModuleThatHasAStyleIsRefusedAndChangesNothing) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    torch::nn::Sequential both(without_bias(4, 4), without_bias(4, 4));
    const Wrong twice([](const StyleTarget& target) {
      auto& linear = *target.module.as<torch::nn::Linear>();
      set_parameter_placement(target, linear.weight, Shard(0), "weight");
      for (int i = 0; i < 2; ++i) {
        attach_boundary(target, {linear.weight}, BoundaryKind::kLinear, {});
      }
    });
    EXPECT_THAT(
        [&] {
          parallelize_module(
              *both, mesh, {{"0", ColwiseParallel()}, {"1", twice}});
        },
        ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr(
            "[parallelize_module] module \"1\" has a style already. Style a "
            "module once.")));
    for (const auto& parameter : both->parameters()) {
      EXPECT_FALSE(is_dtensor(parameter));
    }
  });
}

TEST(AttachBoundary, OfAPlainParameterIsRefusedAndChangesNothing) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    torch::nn::Sequential both(without_bias(4, 4), without_bias(4, 6));
    const Wrong attach([](const StyleTarget& target) {
      auto& linear = *target.module.as<torch::nn::Linear>();
      attach_boundary(target, {linear.weight}, BoundaryKind::kLinear, {});
    });
    const auto refused = [](const std::string& module) {
      return "[attach_boundary] a parameter of " + module +
          " is plain: f64[6, 4]. Call set_parameter_placement() for the "
          "parameter first.";
    };
    EXPECT_EQ(
        error_of([&] {
          parallelize_module(
              *both, mesh, {{"0", ColwiseParallel()}, {"1", attach}});
        }),
        refused("module \"1\""));
    EXPECT_EQ(
        error_of([&] { parallelize_module(*both->ptr(1), mesh, attach); }),
        refused("the root module"));
    for (const auto& parameter : both->parameters()) {
      EXPECT_FALSE(is_dtensor(parameter));
    }
  });
}

// In a plan, the parameter may become a DTensor later.
TEST(AttachBoundary, MayPrecedeThePlacementInAPlan) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    torch::nn::Sequential model(without_bias(4, 6));
    const auto x = uniform({3, 4}, 5);
    const auto truth = model->forward(x).detach();
    const Wrong attach_first([](const StyleTarget& target) {
      auto& linear = *target.module.as<torch::nn::Linear>();
      attach_boundary(target, {linear.weight}, BoundaryKind::kLinear, {});
      set_parameter_placement(target, linear.weight, Shard(0), "weight");
    });
    parallelize_module(*model, mesh, {{"0", attach_first}});
    expect_close(model->forward(x), truth, "output");
  });
}

TEST(AttachBoundary, AnOutputFnReturnsADTensor) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto linear = without_bias(4, 4);
    parallelize_module(*linear, mesh, Wrong([](const StyleTarget& target) {
      auto& module = *target.module.as<torch::nn::Linear>();
      set_parameter_placement(target, module.weight, Shard(0), "weight");
      attach_boundary(
          target,
          {module.weight},
          BoundaryKind::kLinear,
          {.output_fn = [](const at::Tensor&, const at::Tensor& output) {
            return DTensor(output).to_local();
          }});
    }));
    EXPECT_THAT(
        [&] {
          linear(uniform({2, 4}, 1));
        },
        ::testing::ThrowsMessage<c10::TypeError>(::testing::HasSubstr(
            "[boundary] the output_fn of the root module returned a plain "
            "tensor. Return a DTensor, as its arguments are.")));
  });
}

TEST(StyledModule, IsOneNodeForItsProduct) {
  using ::testing::ElementsAre;
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto columns = filled(torch::nn::Linear(4, 6));
    auto rows = filled(torch::nn::Linear(4, 6));
    parallelize_module(*columns, mesh, ColwiseParallel());
    parallelize_module(*rows, mesh, RowwiseParallel());
    const auto x = uniform({3, 4}, 1).requires_grad_(true);
    const auto part_of_x = uniform({3, 2}, 1).requires_grad_(true);
    EXPECT_THAT(
        nodes_below(columns(x)), ElementsAre("AddmmBackward0", "TBackward0"));
    EXPECT_THAT(
        nodes_below(rows(part_of_x)),
        ElementsAre("AddmmBackward0", "TBackward0"));
    // The single node also reshapes from three dimensions to two and back. The
    // bias is added afterwards.
    EXPECT_THAT(
        nodes_below(columns(x.view({3, 1, 4}))),
        ElementsAre(
            "AddBackward0",
            "EnterBackward", // of the bias
            "TBackward0",
            "UnsafeViewBackward0",
            "ViewBackward0")); // of x in this test
  });
}

TEST(StyledModule, CommunicatesOnlyRequestedGradients) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto columns = filled(torch::nn::Linear(4, 6));
    parallelize_module(*columns, mesh, ColwiseParallel());
    const auto x = uniform({3, 4}, 1).requires_grad_(true);
    const auto y = columns(x).sum();
    CommDebugMode mode;
    const auto grads = torch::autograd::grad(
        {y}, {columns->weight}, {}, /*retain_graph=*/true);
    EXPECT_EQ(mode.get_total_counts(), 0);
    EXPECT_TRUE(is_dtensor(grads[0]));
    torch::autograd::grad({y}, {x});
    EXPECT_EQ(mode.get_total_counts(), 1);
  });
}

// The factors of addmm are those of no module.
TEST(StyledModule, MultipliesByFactors) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto plain = filled(torch::nn::Linear(4, 6));
    auto columns = filled(torch::nn::Linear(4, 6));
    parallelize_module(
        *columns, mesh, ColwiseParallel({.output_layouts = Replicate()}));
    const c10::NoGradGuard no_grad;
    const auto x = uniform({3, 4}, 1);
    for (const double factor : {1.0, 2.0}) {
      expect_close(
          at::addmm(columns->bias, x, columns->weight.t(), factor, 0.5),
          at::addmm(plain->bias, x, plain->weight.t(), factor, 0.5),
          "product");
    }
  });
}

// A rank's shard of the bias has one element, which broadcasts to any shape.
TEST(StyledModule, AddsItsBiasOnlyToTensorsOfItsFeatures) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto columns = filled(torch::nn::Linear(4, 2));
    const auto bias = columns->bias.detach().clone();
    parallelize_module(*columns, mesh, ColwiseParallel());
    const c10::NoGradGuard no_grad;
    auto other = uniform({3, 2, 5}, 1);
    const auto before = other.clone();
    EXPECT_EQ(
        error_of([&] { other.add_(columns->bias); }),
        "[boundary] the bias of the root module is f64[1] on this rank, but is "
        "added to a plain tensor that is f64[3, 2, 5]. Add the bias to the "
        "output of the module, or add its full_tensor().");
    auto number = at::zeros({}, at::kDouble);
    EXPECT_NE(error_of([&] { number.add_(columns->bias); }), "");
    EXPECT_TRUE(at::equal(other, before));
    auto output = uniform({3, 2, 1}, 1);
    const auto truth = output + part(bias, mesh, Shard(0));
    output.add_(columns->bias);
    expect_close(output, truth, "output");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
