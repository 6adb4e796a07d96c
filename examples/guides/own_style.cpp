// SPDX-License-Identifier: BSD-3-Clause
// Three ways to write a parallel style: by a boundary, by other styles, and by
// hooks. Each module is compared with the plain module on one rank, forward and
// backward.
#include "../arguments.h"
#include "../check.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <iostream>

using namespace dtensor;

constexpr int64_t kWidth = 8;
constexpr int64_t kHidden = 12;

// [module]
struct GatedMlpImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { // (..., C) -> (..., C)
    const auto halves = gate_up(x).chunk(2, -1);  // (..., 2F): gate, then up
    return down(torch::silu(halves[0]) * halves[1]);
  }
  torch::nn::Linear gate_up =
      register_module("gate_up", torch::nn::Linear(kWidth, 2 * kHidden));
  torch::nn::Linear down =
      register_module("down", torch::nn::Linear(kHidden, kWidth));
};
TORCH_MODULE(GatedMlp);
// [/module]

// [fused]
class FusedColumns : public ParallelStyle {
 public:
  void apply(const StyleTarget& target) const override {
    auto* linear = target.module.as<torch::nn::Linear>();
    DTENSOR_CHECK_NOT_IMPLEMENTED(
        linear != nullptr,
        "[FusedColumns] module \"{}\" is not a torch::nn::Linear. Give it "
        "another style.",
        target.name);
    const auto rows = StridedShard(0, 2); // a chunk of each half
    set_parameter_placement(target, linear->weight, rows, "weight");
    set_parameter_placement(target, linear->bias, rows, "bias");
    attach_boundary(
        target,
        {linear->weight, linear->bias},
        BoundaryKind::kLinear,
        {.input_layouts = Replicate(), // layout of a plain input
         .desired_input_layouts = Replicate(),
         .output_layouts = StridedShard(-1, 2)}); // layout of the product
  }
};
// [/fused]

// [composed]
class GatedMlpParallel : public ParallelStyle {
 public:
  void apply(const StyleTarget& target) const override {
    auto* mlp = target.module.as<GatedMlp>();
    DTENSOR_CHECK_NOT_IMPLEMENTED(
        mlp != nullptr,
        "[GatedMlpParallel] module \"{}\" is not a GatedMlp. Give it another "
        "style.",
        target.name);
    FusedColumns().apply(target.child_target("gate_up", *mlp->gate_up));
    RowwiseParallel().apply(target.child_target("down", *mlp->down));
  }
};
// [/composed]

// [scale]
struct ScaleImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { // (..., F)
    return x * factors;
  }
  torch::Tensor factors = register_parameter("factors", torch::rand({kHidden}));
};
DTENSOR_MODULE(Scale); // enables hooks
// [/scale]

// [hooks]
class ScaleColumns : public ParallelStyle {
 public:
  void apply(const StyleTarget& target) const override {
    auto* scale = target.module.as<ScaleImpl>();
    auto* hooks = dynamic_cast<ModuleHooks*>(&target.module);
    DTENSOR_CHECK_NOT_IMPLEMENTED(
        scale != nullptr && hooks != nullptr,
        "[ScaleColumns] module \"{}\" is not a Scale with hooks. Declare it "
        "with DTENSOR_MODULE.",
        target.name);
    set_parameter_placement(target, scale->factors, Shard(0), "factors");
    hooks->add_forward_pre_hook(
        [mesh = target.mesh](const std::vector<at::Tensor*>& inputs) {
          auto shape = inputs[0]->sizes().vec(); // local sizes
          shape.back() = kHidden; // global sizes, also if shards are uneven
          *inputs[0] = DTensor::from_local(
              *inputs[0], mesh, {Shard(-1)}, {.shape = shape});
        });
    hooks->add_forward_hook([](const std::vector<at::Tensor*>& outputs) {
      *outputs[0] = DTensor(*outputs[0]).to_local();
    });
  }
};
// [/hooks]

// [output_fn]
struct ScaledColumns : ParallelStyle {
  torch::Tensor scale; // (out)

  void apply(const StyleTarget& target) const override {
    auto& linear = *target.module.as<torch::nn::Linear>();
    set_parameter_placement(target, linear.weight, Shard(0), "weight");
    set_parameter_placement(target, scale, Shard(0), "scale");
    attach_boundary(
        target,
        {linear.weight}, // and the bias, if any
        BoundaryKind::kLinear,
        {.input_layouts = Replicate(),
         .desired_input_layouts = Replicate(),
         .output_layouts = Shard(-1),
         .output_fn = [scale = scale](const auto&, const auto& output) {
           return torch::tanh(output) * scale; // output including the bias
         }});
  }
};
// [/output_fn]

// Compares with the plain module, for inputs with one or more dimensions.
void compare_scaled_columns() {
  const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
  for (const auto& sizes :
       {std::vector<int64_t>{kWidth}, {5, kWidth}, {2, 5, kWidth}}) {
    torch::nn::Linear linear(kWidth, kHidden);
    ScaledColumns style;
    style.scale = torch::rand({kHidden});
    const auto x = torch::rand(sizes);
    const auto truth = torch::tanh(linear(x)) * style.scale;
    parallelize_module(*linear, mesh, style);
    const auto y = DTensor::from_local(linear(x), mesh, {Shard(-1)});
    CHECK_THAT(torch::allclose(full_tensor(y), truth));
  }
}

struct ScaledMlpImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return down(scale(torch::gelu(up(x))));
  }
  torch::nn::Linear up =
      register_module("up", torch::nn::Linear(kWidth, kHidden));
  Scale scale = register_module("scale", Scale());
  torch::nn::Linear down =
      register_module("down", torch::nn::Linear(kHidden, kWidth));
};
TORCH_MODULE(ScaledMlp);

template <class Module>
Module make() {
  torch::manual_seed(0);
  Module module;
  module->to(torch::kDouble);
  return module;
}

// [test]
// Checks that the module with these styles gives the result of one rank.
template <class Module>
void compare(const ParallelizePlan& plan, torch::IntArrayRef sizes) {
  const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
  auto plain = make<Module>();
  auto parallel = make<Module>();
  parallelize_module(*parallel, mesh, plan);

  const auto x = torch::rand(sizes, torch::kDouble); // equal on all ranks
  const CommDebugMode comm;
  const auto y = parallel(x);
  const int64_t expected = mesh.size() == 1 ? 0 : 1;
  CHECK_THAT(comm.get_total_counts() == expected);
  const auto truth = plain(x);
  CHECK_THAT(torch::allclose(y, truth));

  y.square().sum().backward();
  truth.square().sum().backward();
  const auto gradients = plain->named_parameters();
  for (const auto& item : parallel->named_parameters()) {
    const auto& right = gradients[item.key()].grad();
    CHECK_THAT(torch::allclose(full_tensor(item.value().grad()), right));
  }
}
// [/test]

int main(int argc, char** argv) {
  const char* const usage = "[ranks, default 2]";
  arguments::check(argc, argv, 1, usage);
  arguments::refuse_launcher("own_style");
  const int64_t ranks = arguments::positive(argc, argv, 1, 2, usage);
  run_ranks(ranks, [] {
    for (const auto& sizes :
         {std::vector<int64_t>{5, kWidth}, {2, 5, kWidth}}) {
      // [plan]
      const ParallelizePlan gated = {{"", GatedMlpParallel()}};
      const ParallelizePlan scaled = {
          {"up", ColwiseParallel()},
          {"scale", ScaleColumns()},
          {"down", RowwiseParallel()},
      };
      // [/plan]
      compare<GatedMlp>(gated, sizes);
      compare<ScaledMlp>(scaled, sizes);
    }
    compare_scaled_columns();
    // A style that does not support a module leaves all modules unchanged.
    auto mlp = make<ScaledMlp>();
    bool refused = false;
    try {
      const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()});
      parallelize_module(
          *mlp, mesh, {{"up", ColwiseParallel()}, {"scale", FusedColumns()}});
    } catch (const c10::NotImplementedError& error) {
      refused = true;
      if (get_rank() == 0) {
        std::cout << error.what_without_backtrace() << "\n";
      }
    }
    CHECK_THAT(refused && !is_dtensor(mlp->up->weight));
  });
}
