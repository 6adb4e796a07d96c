// SPDX-License-Identifier: BSD-3-Clause
#include "op_cases.h"

#include <ATen/ATen.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/tensor/api.h>
#include <torch/csrc/autograd/autograd.h>

namespace bench {
namespace {

using namespace dtensor;
using at::Tensor;

constexpr int64_t kSide = 8;

// One layout of a tensor, and a plain tensor of the shape of this rank's part.
struct Operand {
  Tensor dtensor;
  Tensor plain;
};

// Operands on a mesh of all ranks.
class Operands {
 public:
  explicit Operands(int64_t world_size)
      : mesh(init_device_mesh(at::kCPU, {world_size})),
        // So large that every rank has a part.
        rows(std::max(kSide, world_size)) {}

  Operand make(
      at::IntArrayRef sizes,
      const Placement& layout,
      bool grad = false) const {
    return of(at::randn(sizes), layout, grad);
  }

  Operand of(const Tensor& whole, const Placement& layout, bool grad = false)
      const {
    const Tensor d =
        distribute_tensor(whole, mesh, {layout}, std::nullopt).detach();
    const Tensor plain = DTensor(d).to_local().clone();
    return {d.requires_grad_(grad), plain.requires_grad_(grad)};
  }

  DeviceMesh mesh;
  int64_t rows;
};

class Cases {
 public:
  // `call` takes the tensors, DTensors or plain ones.
  template <class Call, class... Args>
  void add(const std::string& name, const Call& call, const Args&... args) {
    cases.push_back(
        {name, [=] { call(args.dtensor...); }, [=] { call(args.plain...); }});
  }

  std::vector<Case> cases;
};

void add_pointwise(Cases& cases, const Operands& on) {
  const auto a = on.make({on.rows, kSide}, Shard(0));
  const auto b = on.make({on.rows, kSide}, Shard(0));
  const auto zero = on.of(at::zeros({on.rows, kSide}), Shard(0));
  cases.add(
      "add", [](const Tensor& x, const Tensor& y) { x + y; }, a, b);
  cases.add(
      "add_",
      [](Tensor x, const Tensor& y) { x.add_(y); },
      on.make({on.rows, kSide}, Shard(0)),
      zero);
  cases.add(
      "mul_scalar", [](const Tensor& x) { x * 2.0; }, a);
  cases.add(
      "relu", [](const Tensor& x) { at::relu(x); }, a);
  cases.add(
      "clone", [](const Tensor& x) { x.clone(); }, a);
  cases.add(
      "cat",
      [](const Tensor& x, const Tensor& y) {
        at::cat({x, y}, 1);
      },
      a,
      b);
}

void add_views(Cases& cases, const Operands& on) {
  const auto a = on.make({on.rows, kSide}, Shard(0));
  cases.add(
      "view",
      [](const Tensor& x) {
        x.view({x.size(0), 2, 4});
      },
      a);
  cases.add(
      "transpose", [](const Tensor& x) { x.transpose(0, 1); }, a);
  cases.add(
      "detach", [](const Tensor& x) { x.detach(); }, a);
  cases.add(
      "slice", [](const Tensor& x) { x.slice(1, 0, 4); }, a);
}

void add_reductions(Cases& cases, const Operands& on) {
  const auto a = on.make({on.rows, kSide}, Shard(0));
  cases.add(
      "sum", [](const Tensor& x) { x.sum(); }, a);
  cases.add(
      "softmax", [](const Tensor& x) { at::softmax(x, -1); }, a);
  cases.add(
      "layer_norm",
      [](const Tensor& x, const Tensor& weight, const Tensor& bias) {
        at::layer_norm(x, {kSide}, weight, bias);
      },
      a,
      on.make({kSide}, Replicate()),
      on.make({kSide}, Replicate()));
}

void add_products(Cases& cases, const Operands& on) {
  const auto whole = on.make({kSide, kSide}, Replicate());
  cases.add(
      "mm",
      [](const Tensor& x, const Tensor& y) { at::mm(x, y); },
      whole,
      on.make({kSide, on.rows}, Shard(1)));
  cases.add(
      "linear",
      [](const Tensor& x, const Tensor& weight, const Tensor& bias) {
        at::linear(x, weight, bias);
      },
      whole,
      on.make({on.rows, kSide}, Shard(0)),
      on.make({on.rows}, Shard(0)));
  cases.add(
      "embedding",
      [](const Tensor& weight, const Tensor& ids) {
        at::embedding(weight, ids);
      },
      on.make({kSide, on.rows}, Shard(1)),
      on.of(at::arange(4), Replicate()));
  const auto heads = on.make({2, on.rows, 16, kSide}, Shard(1));
  cases.add(
      "attention",
      [](const Tensor& q) { at::scaled_dot_product_attention(q, q, q); },
      heads);
}

void add_from_local(Cases& cases, const Operands& on) {
  const auto a = on.make({on.rows, kSide}, Shard(0));
  const auto mesh = on.mesh;
  cases.cases.push_back({"from_local", [mesh, local = a.plain] {
                           DTensor::from_local(local, mesh, {Shard(0)});
                         }});
  cases.cases.push_back(
      {"to_local", [d = DTensor(a.dtensor)] { d.to_local(); }});
  cases.cases.push_back(
      {"from_local_to_local", [mesh, local = a.plain] {
         DTensor::from_local(local, mesh, {Shard(0)}).to_local();
       }});
}

void add_redistributions(Cases& cases, const Operands& on) {
  const auto add =
      [&](const char* kind, const DTensor& from, const Placement& to) {
        cases.cases.push_back(
            {std::string("redistribute_") + kind,
             [from, layout = Placements{to}] { from.redistribute(layout); }});
      };
  const DTensor shard(on.make({on.rows, kSide}, Shard(0)).dtensor);
  const DTensor square(on.make({on.rows, on.rows}, Shard(0)).dtensor);
  const DTensor whole(on.make({on.rows, kSide}, Replicate()).dtensor);
  const DTensor partial =
      DTensor::from_local(at::randn({on.rows, kSide}), on.mesh, {Partial()});
  add("noop", shard, Shard(0));
  add("slice", whole, Shard(0));
  add("all_gather", shard, Replicate());
  add("all_reduce", partial, Replicate());
  add("reduce_scatter", partial, Shard(0));
  add("all_to_all", square, Shard(1));
}

// The gradients of `leaves` of what `forward` computes from them.
template <class Forward>
std::function<void()> backward_of(
    const Forward& forward,
    const std::vector<Tensor>& leaves) {
  const Tensor grad = at::ones_like(forward(leaves)).detach();
  return [=] { torch::autograd::grad({forward(leaves)}, leaves, {grad}); };
}

} // namespace

std::vector<Case> operator_cases(int64_t world_size) {
  const Operands on(world_size);
  Cases cases;
  add_pointwise(cases, on);
  add_views(cases, on);
  add_reductions(cases, on);
  add_products(cases, on);
  return cases.cases;
}

std::vector<Case> conversion_cases(int64_t world_size) {
  const Operands on(world_size);
  Cases cases;
  add_from_local(cases, on);
  add_redistributions(cases, on);
  return cases.cases;
}

std::vector<Case> gradient_cases(int64_t world_size) {
  const Operands on(world_size);
  const auto x = on.make({kSide, kSide}, Replicate(), true);
  const auto weight = on.make({on.rows, kSide}, Shard(0), true);
  const auto bias = on.make({on.rows}, Shard(0), true);
  const auto linear = [](const std::vector<Tensor>& leaves) {
    return at::linear(leaves[0], leaves[1], leaves[2]);
  };
  return {
      {"linear",
       backward_of(linear, {x.dtensor, weight.dtensor, bias.dtensor}),
       backward_of(linear, {x.plain, weight.plain, bias.plain})}};
}

} // namespace bench
