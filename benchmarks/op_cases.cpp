// SPDX-License-Identifier: BSD-3-Clause
#include "op_cases.h"

#include <ATen/ATen.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/tensor/dtensor.h>
#include <torch/csrc/autograd/autograd.h>

namespace bench {
namespace {

using namespace dtensor;
using at::Tensor;

constexpr int64_t kSide = 8;

// A DTensor, and a plain tensor with the shape of this rank's shard.
struct Operand {
  Tensor dtensor;
  Tensor plain;
};

// Operands on a mesh of all ranks, optionally as leaves of a graph.
class Operands {
 public:
  Operands(int64_t world_size, bool as_leaves)
      : mesh(init_device_mesh(at::kCPU, {world_size})),
        // Large enough that every rank has a nonempty shard.
        rows(std::max(kSide, world_size)),
        leaves(as_leaves) {}

  Operand make(at::IntArrayRef sizes, const Placement& layout) const {
    return of(at::randn(sizes), layout);
  }

  Operand of(const Tensor& whole, const Placement& layout) const {
    const Tensor d =
        distribute_tensor(whole, mesh, {layout}, std::nullopt).detach();
    const Tensor plain = DTensor(d).to_local().clone();
    const bool leaf = leaves && whole.is_floating_point();
    return {d.requires_grad_(leaf), plain.requires_grad_(leaf)};
  }

  DeviceMesh mesh;
  int64_t rows;
  bool leaves;
};

// Returns a function that computes the gradients of the leaves among the
// tensors through `call`.
template <class Call, class... Tensors>
std::function<void()> backward_of(const Call& call, const Tensors&... tensors) {
  std::vector<Tensor> leaves;
  for (const Tensor& tensor : {tensors...}) {
    if (tensor.requires_grad()) {
      leaves.push_back(tensor);
    }
  }
  const Tensor grad = at::ones_like(call(tensors...)).detach();
  return [=] { torch::autograd::grad({call(tensors...)}, leaves, {grad}); };
}

class Cases {
 public:
  explicit Cases(bool backward) : backward_(backward) {}

  // Adds a case. `call` maps tensors to a tensor, for DTensors and for plain
  // ones.
  template <class Call, class... Args>
  void add(const std::string& name, const Call& call, const Args&... args) {
    if (backward_) {
      cases.push_back(
          {name,
           backward_of(call, args.dtensor...),
           backward_of(call, args.plain...)});
      return;
    }
    cases.push_back(
        {name, [=] { call(args.dtensor...); }, [=] { call(args.plain...); }});
  }

  std::vector<Case> cases;

 private:
  bool backward_;
};

// Adds operators without a gradient.
void add_undifferentiable(Cases& cases, const Operands& on) {
  cases.add(
      "add_",
      [](Tensor x, const Tensor& y) { return x.add_(y); },
      on.make({on.rows, kSide}, Shard(0)),
      on.of(at::zeros({on.rows, kSide}), Shard(0)));
  cases.add(
      "detach",
      [](const Tensor& x) { return x.detach(); },
      on.make({on.rows, kSide}, Shard(0)));
}

void add_pointwise(Cases& cases, const Operands& on) {
  const auto a = on.make({on.rows, kSide}, Shard(0));
  const auto b = on.make({on.rows, kSide}, Shard(0));
  cases.add(
      "add", [](const Tensor& x, const Tensor& y) { return x + y; }, a, b);
  cases.add(
      "mul_scalar", [](const Tensor& x) { return x * 2.0; }, a);
  cases.add(
      "relu", [](const Tensor& x) { return at::relu(x); }, a);
  cases.add(
      "clone", [](const Tensor& x) { return x.clone(); }, a);
  cases.add(
      "cat",
      [](const Tensor& x, const Tensor& y) {
        return at::cat({x, y}, 1);
      },
      a,
      b);
}

void add_views(Cases& cases, const Operands& on) {
  const auto a = on.make({on.rows, kSide}, Shard(0));
  cases.add(
      "view",
      [](const Tensor& x) {
        return x.view({x.size(0), 2, 4});
      },
      a);
  cases.add(
      "transpose", [](const Tensor& x) { return x.transpose(0, 1); }, a);
  cases.add(
      "slice", [](const Tensor& x) { return x.slice(1, 0, 4); }, a);
}

void add_reductions(Cases& cases, const Operands& on) {
  const auto a = on.make({on.rows, kSide}, Shard(0));
  cases.add(
      "sum", [](const Tensor& x) { return x.sum(); }, a);
  cases.add(
      "softmax", [](const Tensor& x) { return at::softmax(x, -1); }, a);
  cases.add(
      "layer_norm",
      [](const Tensor& x, const Tensor& weight, const Tensor& bias) {
        return at::layer_norm(x, {kSide}, weight, bias);
      },
      a,
      on.make({kSide}, Replicate()),
      on.make({kSide}, Replicate()));
}

void add_products(Cases& cases, const Operands& on) {
  const auto whole = on.make({kSide, kSide}, Replicate());
  cases.add(
      "mm",
      [](const Tensor& x, const Tensor& y) { return at::mm(x, y); },
      whole,
      on.make({kSide, on.rows}, Shard(1)));
  cases.add(
      "linear",
      [](const Tensor& x, const Tensor& weight, const Tensor& bias) {
        return at::linear(x, weight, bias);
      },
      whole,
      on.make({on.rows, kSide}, Shard(0)),
      on.make({on.rows}, Shard(0)));
  cases.add(
      "embedding",
      [](const Tensor& weight, const Tensor& ids) {
        return at::embedding(weight, ids);
      },
      on.make({kSide, on.rows}, Shard(1)),
      on.of(at::arange(4), Replicate()));
  const auto heads = on.make({2, on.rows, 16, kSide}, Shard(1));
  cases.add(
      "attention",
      [](const Tensor& q) { return at::scaled_dot_product_attention(q, q, q); },
      heads);
}

// Adds operators of images (N, C, H, W) with a sharded batch.
void add_images(Cases& cases, const Operands& on) {
  constexpr int64_t kChannels = 2;
  const auto a = on.make({on.rows, kChannels, kSide, kSide}, Shard(0));
  const auto channels = on.make({kChannels}, Replicate());
  cases.add(
      "conv2d",
      [](const Tensor& x, const Tensor& weight, const Tensor& bias) {
        return at::conv2d(x, weight, bias, 1, 1);
      },
      a,
      on.make({kChannels, kChannels, 3, 3}, Replicate()),
      channels);
  cases.add(
      "max_pool2d", [](const Tensor& x) { return at::max_pool2d(x, 2); }, a);
  cases.add(
      "group_norm",
      [](const Tensor& x, const Tensor& weight, const Tensor& bias) {
        return at::group_norm(x, 2, weight, bias);
      },
      a,
      channels,
      channels);
  cases.add(
      "upsample",
      [](const Tensor& x) {
        return at::upsample_nearest2d(x, {2 * kSide, 2 * kSide});
      },
      a);
}

// Adds operators along an unsharded dimension.
void add_along_rows(Cases& cases, const Operands& on) {
  const auto a = on.make({on.rows, kSide}, Shard(0));
  cases.add(
      "cumsum", [](const Tensor& x) { return x.cumsum(1); }, a);
  cases.add(
      "topk", [](const Tensor& x) { return std::get<0>(x.topk(2, 1)); }, a);
  cases.add(
      "fft", [](const Tensor& x) { return at::fft_rfft(x, {}, 1); }, a);
}

void add_from_local(Cases& cases, const Operands& on) {
  const auto a = on.make({on.rows, kSide}, Shard(0));
  const auto mesh = on.mesh;
  cases.cases.push_back({"from_local", [mesh, local = a.plain] {
                           DTensor::from_local(local, mesh, {Shard(0)});
                         }});
  cases.cases.push_back(
      {"to_local", [d = DTensor(a.dtensor)] { d.to_local(); }});
  cases.cases.push_back({"from_local_to_local", [mesh, local = a.plain] {
                           to_local(
                               DTensor::from_local(local, mesh, {Shard(0)}));
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

} // namespace

std::vector<Case> operator_cases(int64_t world_size, bool backward) {
  const Operands on(world_size, backward);
  Cases cases(backward);
  if (!backward) {
    add_undifferentiable(cases, on);
  }
  add_pointwise(cases, on);
  add_views(cases, on);
  add_reductions(cases, on);
  add_products(cases, on);
  add_images(cases, on);
  add_along_rows(cases, on);
  return cases.cases;
}

std::vector<Case> conversion_cases(int64_t world_size) {
  const Operands on(world_size, /*leaves=*/false);
  Cases cases(/*backward=*/false);
  add_from_local(cases, on);
  add_redistributions(cases, on);
  return cases.cases;
}

} // namespace bench
