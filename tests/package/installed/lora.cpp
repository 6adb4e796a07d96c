// SPDX-License-Identifier: BSD-3-Clause
// LoRA as a parallel style: a frozen Linear, sharded by columns or by rows,
// with two trainable low-rank matrices. Results are compared with one rank,
// forward and backward.
#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

using namespace dtensor;

namespace {

constexpr int64_t kWidth = 8;
constexpr int64_t kRank = 2;
constexpr double kScale = 0.5;

void check(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
  }
}

enum class Cut { kColumns, kRows };

// y = x W' + bias + scale * (x A') B', where only A and B are trained.
class Lora : public ParallelStyle {
 public:
  explicit Lora(Cut cut) : cut_(cut) {}

  void apply(const StyleTarget& target) const override {
    auto* linear = target.module.as<torch::nn::Linear>();
    TORCH_CHECK(linear != nullptr, target.name, " is no Linear.");
    const bool columns = cut_ == Cut::kColumns;
    linear->weight.requires_grad_(false);
    linear->bias.requires_grad_(false);
    const auto a = linear->register_parameter(
        "lora_a", torch::ones({kRank, linear->weight.size(1)}).div_(7));
    const auto b = linear->register_parameter(
        "lora_b", torch::ones({linear->weight.size(0), kRank}).div_(3));
    const auto whole_or = [](bool cut, int64_t dim) {
      return cut ? Placement(Shard(dim)) : Placement(Replicate());
    };
    set_parameter_placement(
        target, linear->weight, Shard(columns ? 0 : 1), "weight");
    set_parameter_placement(target, linear->bias, whole_or(columns, 0), "bias");
    set_parameter_placement(target, a, whole_or(!columns, 1), "lora_a");
    set_parameter_placement(target, b, whole_or(columns, 0), "lora_b");
    attach_boundary(
        target,
        {linear->weight, linear->bias},
        BoundaryKind::kLinear,
        {.input_layouts = whole_or(!columns, -1),
         .desired_input_layouts = whole_or(!columns, -1),
         .output_layouts = whole_or(columns, -1),
         .output_fn = [a, b](const at::Tensor& x, const at::Tensor& y) {
           return y + kScale * x.matmul(a.t()).matmul(b.t());
         }});
  }

 private:
  Cut cut_;
};

struct MLPImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return down(torch::gelu(up(x)));
  }
  torch::nn::Linear up =
      register_module("up", torch::nn::Linear(kWidth, 2 * kWidth));
  torch::nn::Linear down =
      register_module("down", torch::nn::Linear(2 * kWidth, kWidth));
};
TORCH_MODULE(MLP);

// Reference computation with plain tensors.
struct Truth {
  explicit Truth(const MLP& model) {
    for (const auto& item : model->named_parameters()) {
      tensors[item.key()] = DTensor(item.value().detach()).full_tensor();
      if (item.key().find("lora") != std::string::npos) {
        tensors[item.key()].requires_grad_();
      }
    }
  }
  torch::Tensor linear(const std::string& name, const torch::Tensor& x) {
    const auto y =
        x.matmul(tensors[name + ".weight"].t()) + tensors[name + ".bias"];
    const auto& a = tensors[name + ".lora_a"];
    const auto& b = tensors[name + ".lora_b"];
    return y + kScale * x.matmul(a.t()).matmul(b.t());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return linear("down", torch::gelu(linear("up", x)));
  }
  std::map<std::string, torch::Tensor> tensors;
};

void run(MLP& model, const torch::Tensor& x) {
  Truth truth(model);
  const auto y = model(x);
  const auto expected = truth.forward(x);
  check(torch::allclose(y, expected, 1e-4), "another output");
  model->zero_grad();
  y.square().sum().backward();
  expected.square().sum().backward();
  for (const auto& item : model->named_parameters()) {
    const auto& right = truth.tensors[item.key()].grad();
    check(item.value().grad().defined() == right.defined(), "who learns");
    check(
        !right.defined() ||
            torch::allclose(
                DTensor(item.value().grad()).full_tensor(), right, 1e-4),
        "another gradient");
  }
}

} // namespace

int main() {
  run_ranks(2, [] {
    torch::manual_seed(1);
    MLP model;
    parallelize_module(
        *model,
        init_device_mesh(torch::kCPU, {2}),
        {{"up", Lora(Cut::kColumns)}, {"down", Lora(Cut::kRows)}});
    run(model, torch::rand({3, kWidth}));
    run(model, torch::rand({2, 3, kWidth}));
  });
  std::puts("LoRA trains tensor-parallel");
}
