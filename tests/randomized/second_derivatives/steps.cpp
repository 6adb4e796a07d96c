// SPDX-License-Identifier: BSD-3-Clause
// Programs of a few steps on one tensor. Every step is a function of the full
// tensor with a special implementation for distributed tensors.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tanh.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/local_map.h>

#include "program.h"

namespace dtensor::second_derivatives {
namespace {

struct Step {
  std::string name;
  std::function<at::Tensor(const at::Tensor&)> plain;
  std::function<at::Tensor(const DTensor&)> distributed;
};

FromLocalOptions shape_of(const at::Tensor& t) {
  FromLocalOptions options;
  options.shape = t.sizes().vec();
  return options;
}

at::Tensor itself(const at::Tensor& t) {
  return t;
}

bool is_whole(const DTensor& t) {
  return t.spec()->is_replicated();
}

// Returns the default gradient placements explicitly: Replicate for Partial.
Placements gradient_of(const DTensor& t) {
  Placements placements(t.placements().begin(), t.placements().end());
  for (auto& p : placements) {
    p = p.is_partial() ? Replicate() : p;
  }
  return placements;
}

Placements all(const DTensor& t, const Placement& p) {
  return Placements(t.placements().size(), p);
}

Step redistribute(const Placements& to) {
  return {
      "redistribute to " + to_string(PlacementsRef(to)),
      itself,
      [to](const DTensor& t) { return t.redistribute(to); }};
}

Step multiply() {
  const auto fn = [](const at::Tensor& t) { return t * t + t; };
  return {"t * t + t", fn, fn};
}

// Applies a function to local tensors: multiplication by 3, which is valid on
// partial terms, or tanh after reducing them.
Step through_local(bool says_gradients, bool nonlinear) {
  const auto fn = [nonlinear](const at::Tensor& t) {
    return nonlinear ? at::tanh(t) : t * 3;
  };
  return {
      c10::str(
          "local ",
          nonlinear ? "tanh" : "* 3",
          says_gradients ? " with grad_placements" : ""),
      fn,
      [=](const DTensor& given) {
        const auto t = nonlinear ? given.redistribute(gradient_of(given))
                                 : at::Tensor(given);
        auto options = shape_of(t);
        std::optional<Placements> grad;
        if (says_gradients) {
          grad = gradient_of(t);
          options.grad_placements = grad;
        }
        return at::Tensor(DTensor::from_local(
            fn(to_local(t, grad)),
            DTensor(t).device_mesh(),
            DTensor(t).placements(),
            options));
      }};
}

// Computes a product with each rank's columns of `w` on the full tensor.
Step columns(const at::Tensor& w) {
  return {
      "columns of a product",
      [w](const at::Tensor& t) { return t.matmul(w); },
      [w](const DTensor& given) {
        const DTensor t = is_whole(given)
            ? at::Tensor(given)
            : given.redistribute(all(given, Replicate()));
        const auto& mesh = t.device_mesh();
        auto layout = all(t, Replicate());
        layout[0] = Shard(1);
        const auto mine =
            to_local(distribute_tensor(w, mesh, layout, std::nullopt));
        auto grad = all(t, Replicate());
        grad[0] = Partial();
        FromLocalOptions options;
        layout[0] = Shard(t.dim() - 1);
        options.shape = t.sizes().vec();
        options.shape->back() = w.size(1);
        return at::Tensor(DTensor::from_local(
            t.to_local(grad).matmul(mine), mesh, layout, options));
      }};
}

// Computes a product of sharded columns of `t` and rows of `w`; the local
// results are partial sums.
Step inner(const at::Tensor& w) {
  return {
      "a product over ranks",
      [w](const at::Tensor& t) { return t.matmul(w); },
      [w](const DTensor& given) {
        auto layout = all(given, Replicate());
        layout[0] = Shard(given.dim() - 1);
        const auto t = given.redistribute(layout);
        const auto& mesh = DTensor(t).device_mesh();
        layout[0] = Shard(0);
        const auto mine =
            to_local(distribute_tensor(w, mesh, layout, std::nullopt));
        layout[0] = Partial();
        FromLocalOptions options;
        options.shape = t.sizes().vec();
        options.shape->back() = w.size(1);
        return at::Tensor(DTensor::from_local(
            to_local(t).matmul(mine), mesh, layout, options));
      }};
}

// Gathers the full tensor and converts back, to a shard per rank or to a
// replicated tensor.
Step through_full(bool cuts) {
  return {
      cuts ? "full_tensor, cut" : "full_tensor",
      itself,
      [cuts](const DTensor& t) {
        const auto mesh = t.device_mesh();
        if (!cuts || t.dim() == 0) {
          return replicated(t.full_tensor(), mesh);
        }
        auto grad = all(t, Replicate());
        auto layout = grad;
        grad[0] = Partial();
        layout[0] = Shard(0);
        const auto rows = local_intervals(
            t.size(0), 0, mesh.shape(), layout, *mesh.get_coordinate());
        const auto begin = rows.empty() ? 0 : rows[0].begin;
        const auto count = rows.empty() ? 0 : rows[0].size();
        return at::Tensor(DTensor::from_local(
            t.full_tensor(grad).narrow(0, begin, count),
            mesh,
            layout,
            shape_of(t)));
      }};
}

// Passes gradients through as Partial; they are reduced at the end.
Step terms_of_gradients() {
  return {"gradients in P(sum)", itself, [](const DTensor& given) {
            const auto t = given.redistribute(all(given, Replicate()));
            auto options = shape_of(t);
            options.grad_placements = all(t, Partial());
            return at::Tensor(DTensor::from_local(
                to_local(t, all(t, Partial())),
                DTensor(t).device_mesh(),
                DTensor(t).placements(),
                options));
          }};
}

// Applies local_map: a product over ranks, or this rank's shard times the sum
// of the full tensor.
Step mapped(const at::Tensor& w, bool over_ranks, bool says_shape) {
  const auto fn = over_ranks
      ? [](const at::Tensor& x, const at::Tensor& y) { return x.matmul(y); }
      : [](const at::Tensor& x, const at::Tensor& y) { return x * y.sum(); };
  return {
      c10::str("local_map ", over_ranks ? "of a product" : "of t * t.sum()"),
      [=](const at::Tensor& t) { return fn(t, over_ranks ? w : t); },
      [=](const DTensor& t) {
        auto out = all(t, Replicate());
        auto x = out;
        auto y = out;
        auto y_grad = out;
        x[0] = Shard(over_ranks ? t.dim() - 1 : 0);
        y[0] = over_ranks ? Placement(Shard(0)) : Replicate();
        out[0] = over_ranks ? Placement(Partial()) : Shard(0);
        y_grad[0] = over_ranks ? Placement(Shard(0)) : Partial();
        LocalMapOptions options;
        options.in_grad_placements = {x, y_grad};
        options.redistribute_inputs = true;
        if (says_shape) {
          auto shape = t.sizes().vec();
          shape.back() = over_ranks ? w.size(1) : shape.back();
          options.out_shapes = {shape};
        }
        return local_map(fn, out, {x, y}, options)(
            t, over_ranks ? replicated(w, t.device_mesh()) : at::Tensor(t));
      }};
}

Step draw_step(
    int64_t ndim,
    int64_t width,
    const std::vector<int64_t>& mesh,
    Random& random) {
  const auto seed = static_cast<uint64_t>(random.below(1 << 20));
  switch (random.below(11)) {
    case 0:
    case 1:
      return redistribute(draw_layout(ndim, true, mesh, random));
    case 2:
      return multiply();
    case 3:
      return through_local(random.chance(50), true);
    case 4:
      return through_local(random.chance(50), false);
    case 5:
      return columns(uniform({width, width}, seed));
    case 6:
      return inner(uniform({width, width}, seed));
    case 7:
      return through_full(random.chance(60));
    case 8:
      return mapped(uniform({width, width}, seed), true, random.chance(50));
    case 9:
      return mapped({}, false, random.chance(50));
    default:
      return terms_of_gradients();
  }
}

} // namespace

Program draw_steps(const std::vector<int64_t>& mesh, Random& random) {
  static const std::vector<int64_t> sizes = {1, 2, 3, 4, 4, 5, 6};
  std::vector<int64_t> shape;
  const auto ndim = 1 + random.below(3);
  for (int64_t d = 0; d < ndim; ++d) {
    shape.push_back(random.one_of(sizes));
  }
  Program program;
  program.operands = {
      uniform(shape, static_cast<uint64_t>(random.below(1 << 20)))};
  program.layouts = {draw_layout(ndim, true, mesh, random)};
  std::vector<Step> steps;
  const auto count = 1 + random.below(5);
  for (int64_t i = 0; i < count; ++i) {
    steps.push_back(draw_step(ndim, shape.back(), mesh, random));
    program.name += (i == 0 ? "" : "; ") + steps.back().name;
  }
  program.run = [steps](const Tensors& operands, const DeviceMesh* on) {
    at::Tensor t = operands[0];
    for (const auto& step : steps) {
      t = on == nullptr ? step.plain(t) : step.distributed(DTensor(t));
    }
    return Results{{t}, {}};
  };
  return program;
}

} // namespace dtensor::second_derivatives
