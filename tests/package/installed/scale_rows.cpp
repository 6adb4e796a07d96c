// SPDX-License-Identifier: BSD-3-Clause
// Operator of another library, with kernels for the CPU and the meta device,
// and the sharding rule that makes it work on DTensors.
#include <dtensor/dtensor.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

using namespace dtensor;

namespace {

void check(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
  }
}

// Multiplies row i of `x` by factor i.
struct ScaleRows : torch::autograd::Function<ScaleRows> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& factors) {
    context->save_for_backward({x, factors});
    return x * factors.unsqueeze(1);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    return {grads[0] * saved[1].unsqueeze(1), (grads[0] * saved[0]).sum(1)};
  }
};

at::Tensor scale_rows(const at::Tensor& x, const at::Tensor& factors) {
  return x * factors.unsqueeze(1);
}
at::Tensor shape_of(const at::Tensor& x, const at::Tensor&) {
  return at::empty_like(x);
}
at::Tensor with_gradient(const at::Tensor& x, const at::Tensor& factors) {
  return ScaleRows::apply(x, factors);
}

TORCH_LIBRARY(mylib, library) {
  library.def("scale_rows(Tensor x, Tensor factors) -> Tensor");
}
TORCH_LIBRARY_IMPL(mylib, CPU, library) {
  library.impl("scale_rows", scale_rows);
}
TORCH_LIBRARY_IMPL(mylib, Meta, library) {
  library.impl("scale_rows", shape_of);
}
TORCH_LIBRARY_IMPL(mylib, AutogradCPU, library) {
  library.impl("scale_rows", with_gradient);
}

at::Tensor call(const at::Tensor& x, const at::Tensor& factors) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("mylib::scale_rows", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  return op.call(x, factors);
}

// Strategies with sharded rows or columns. Replicated operands are valid for
// every operator and need no strategy.
Strategies rows_or_columns(const OpCall&, int64_t) {
  return {
      {.outputs = {Shard(0)}, .inputs = {Shard(0), Shard(0)}},
      {.outputs = {Shard(1)}, .inputs = {Shard(1), Replicate()}}};
}

at::Tensor whole(const at::Tensor& t) {
  return DTensor(t.detach()).full_tensor();
}

void run(Placement layout_of_x, Placement expected) {
  const auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
  const auto full_x = torch::randn({5, 4}, torch::kDouble).requires_grad_();
  const auto full_f = torch::randn({5}, torch::kDouble).requires_grad_();
  const auto truth = call(full_x, full_f);
  truth.pow(2).sum().backward();

  const auto leaf = [&](const at::Tensor& full, Placement layout) {
    return at::Tensor(distribute_tensor(full.detach(), mesh, {layout}))
        .detach()
        .requires_grad_();
  };
  const auto x = leaf(full_x, layout_of_x);
  const auto factors = leaf(full_f, Replicate());
  const auto y = call(x, factors);
  check(
      DTensor(y).placements() == PlacementsRef(expected),
      "the result has another layout");
  check(torch::allclose(whole(y), truth), "another value");
  y.pow(2).sum().backward();
  check(torch::allclose(whole(x.grad()), full_x.grad()), "another gradient");
  check(
      torch::allclose(whole(factors.grad()), full_f.grad()),
      "another gradient of the factors");
}

} // namespace

int main() {
  torch::manual_seed(0);
  run_ranks(2, [] { run(Replicate(), Replicate()); });
  std::string refused;
  try {
    run_ranks(2, [] { run(Shard(0), Shard(0)); });
  } catch (const c10::Error& error) {
    refused = error.what_without_backtrace();
  }
  check(
      refused.find("[mylib::scale_rows] no sharding rule") != refused.npos,
      "rows were not refused without a rule");

  register_sharding("mylib::scale_rows", rows_or_columns);
  run_ranks(2, [] {
    run(Replicate(), Replicate());
    run(Shard(0), Shard(0));
    run(Shard(1), Shard(1));
  });
  std::puts("mylib::scale_rows computes on sharded tensors");
}
