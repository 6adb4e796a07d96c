// SPDX-License-Identifier: BSD-3-Clause
// Extra time of an operator's first call on a new shape, compared with the
// second call. The extra time is the time to decide the call's layouts. Every
// sample has a new shape. Also measures the time to make plans.
#include "harness.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/redistribute/plan.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/testing/fake_world.h>
#include <tests/redistribute/layouts.h>

#include <algorithm>
#include <limits>

namespace {

using namespace dtensor;
using at::Tensor;
using Call = std::function<void()>;

constexpr int64_t kSide = 64;
constexpr int64_t kSamples = 15;

// Tensors on one mesh. Sharded tensors are sharded over the last mesh
// dimension.
class Operands {
 public:
  explicit Operands(const std::vector<int64_t>& mesh_shape)
      : mesh_(init_device_mesh(at::kCPU, mesh_shape)) {}

  Tensor whole(at::IntArrayRef sizes) const {
    return make(sizes, Replicate());
  }
  Tensor cut(at::IntArrayRef sizes, int64_t dim) const {
    return make(sizes, Shard(dim));
  }

 private:
  Tensor make(at::IntArrayRef sizes, const Placement& last) const {
    Placements placements(static_cast<size_t>(mesh_.ndim()), Replicate());
    placements.back() = last;
    return distribute_tensor(at::randn(sizes), mesh_, placements, std::nullopt)
        .detach();
  }

  DeviceMesh mesh_;
};

// Returns an operator call on tensors. The shape of these tensors depends on
// the sample's number.
using Make = std::function<Call(const Operands& on, int64_t sample)>;

int64_t rows(int64_t sample) {
  return kSide + 8 * sample;
}

Call add(const Operands& on, int64_t sample) {
  return [a = on.cut({rows(sample), kSide}, 0),
          b = on.cut({rows(sample), kSide}, 0)] { a + b; };
}

Call mm(const Operands& on, int64_t sample) {
  return [x = on.whole({rows(sample), kSide}), w = on.cut({kSide, kSide}, 1)] {
    at::mm(x, w);
  };
}

// Calls whose operands must be redistributed.
Call mm_moved(const Operands& on, int64_t sample) {
  return [x = on.cut({rows(sample), kSide}, 0), w = on.cut({kSide, kSide}, 0)] {
    at::mm(x, w);
  };
}

Call add_moved(const Operands& on, int64_t sample) {
  return [a = on.cut({rows(sample), kSide}, 0),
          b = on.cut({rows(sample), kSide}, 1)] { a + b; };
}

Call addmm(const Operands& on, int64_t sample) {
  return [bias = on.cut({kSide}, 0),
          x = on.whole({rows(sample), kSide}),
          w = on.cut({kSide, kSide}, 1)] { at::addmm(bias, x, w); };
}

Call view(const Operands& on, int64_t sample) {
  return [x = on.cut({rows(sample), kSide}, 0), sample] {
    x.view({rows(sample), 8, 8});
  };
}

Call sum(const Operands& on, int64_t sample) {
  return [x = on.cut({rows(sample), kSide}, 0)] { x.sum(); };
}

Call softmax(const Operands& on, int64_t sample) {
  return [x = on.cut({rows(sample), kSide}, 0)] { at::softmax(x, -1); };
}

Call layer_norm(const Operands& on, int64_t sample) {
  return
      [x = on.cut({rows(sample), kSide}, 0),
       weight = on.whole({kSide}),
       bias = on.whole({kSide})] { at::layer_norm(x, {kSide}, weight, bias); };
}

Call attention(const Operands& on, int64_t sample) {
  return [q = on.cut({2, 8, 16 + sample, 8}, 1)] {
    at::scaled_dot_product_attention(q, q, q);
  };
}

double us_of(const Call& call) {
  const double begin = bench::now();
  call();
  return (bench::now() - begin) * 1e6;
}

void run(
    const std::string& benchmark,
    const Operands& on,
    const Make& make,
    const bench::Options& options) {
  if (!options.wants(benchmark)) {
    return;
  }
  make(on, 0)(); // work done once per process
  std::vector<double> extras, warm;
  for (int64_t sample = 1; sample <= (options.smoke ? 1 : kSamples); ++sample) {
    const Call call = make(on, sample);
    const double first = us_of(call);
    warm.push_back(us_of(call));
    extras.push_back(first - warm.back());
  }
  bench::report(
      benchmark,
      {{"us", bench::median(extras)},
       {"warm_us", bench::median(warm)},
       {"spread", bench::spread(extras, bench::median(extras))}});
}

// Returns the layouts R, P(sum) and shards of each dimension on the mesh of a
// run. Each run's mesh has other names, because plans are cached and equal
// meshes share them.
std::vector<SpecPtr>
all_specs(const std::vector<int64_t>& shape, SizesRef sizes, int run) {
  std::vector<Placement> kinds{Replicate(), Partial()};
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    kinds.push_back(Shard(static_cast<int64_t>(dim)));
  }
  std::vector<std::string> names;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    names.push_back(c10::str("run_", run, "_dim_", dim));
  }
  const auto mesh = init_device_mesh(at::kCPU, shape, names);
  std::vector<SpecPtr> specs;
  for (const auto& layout : testing::all_layouts(shape.size(), kinds)) {
    specs.push_back(Spec::make(mesh, layout, sizes, at::kFloat));
  }
  return specs;
}

// Makes the plan of each pair of layouts a few times, and reports the slowest
// pair.
void run_plans(
    const std::vector<int64_t>& shape,
    SizesRef sizes,
    const bench::Options& options) {
  const auto name =
      c10::str("cold/plan/", c10::Join("x", shape), "/", c10::Join("x", sizes));
  if (!options.wants(name)) {
    return;
  }
  std::vector<double> times;
  for (int run = 0; run < (options.smoke ? 1 : 3); ++run) {
    const auto specs = all_specs(shape, sizes, run);
    times.resize(
        specs.size() * specs.size(), std::numeric_limits<double>::infinity());
    for (size_t i = 0; i < times.size(); ++i) {
      const SpecPtr& from = specs[i / specs.size()];
      const SpecPtr& to = specs[i % specs.size()];
      times[i] = std::min(times[i], us_of([&] { plan(from, to); }));
    }
  }
  std::ranges::sort(times);
  bench::report(
      name,
      {{"us", times.back()},
       {"p99_us", times[times.size() * 99 / 100]},
       {"median_us", bench::median(times)}});
}

void run_mesh(
    const std::vector<int64_t>& shape,
    const bench::Options& options) {
  const at::NoGradGuard no_grad;
  const Operands on(shape);
  const std::pair<const char*, Make> operators[] = {
      {"add", add},
      {"add_moved", add_moved},
      {"mm", mm},
      {"mm_moved", mm_moved},
      {"addmm", addmm},
      {"view", view},
      {"sum", sum},
      {"softmax", softmax},
      {"layer_norm", layer_norm},
      {"attention", attention}};
  for (const auto& [name, make] : operators) {
    run(c10::str("cold/", name, "/", c10::Join("x", shape)), on, make, options);
  }
  for (const Sizes& sizes :
       {Sizes{8, 8},
        Sizes{5, 7},
        Sizes{4096, 4096},
        Sizes{16, 16, 16},
        Sizes{5, 7, 9},
        Sizes{512, 512, 512}}) {
    run_plans(shape, sizes, options);
  }
}

} // namespace

int main(int argc, char** argv) {
  const auto options =
      bench::parse(argc, argv, "The first call of an operator on a new shape");
  at::set_num_threads(1);
  const std::vector<std::vector<int64_t>> meshes = {
      {8}, {2, 4}, {2, 2, 2}, {4, 4, 4}};
  for (const auto& shape : meshes) {
    testing::with_fake_world(
        0, c10::multiply_integers(shape), [&] { run_mesh(shape, options); });
  }
}
