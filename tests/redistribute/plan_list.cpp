// SPDX-License-Identifier: BSD-3-Clause
// Prints the plans between layouts, one per line, for tools/plan_table.py:
//
//   dtensor_plan_list              all pairs of layouts on several meshes
//   dtensor_plan_list measure 2x2  modelled and measured time of 50 pairs on
//                                  this mesh, with costs from measure_costs()
//   dtensor_plan_list sample 2x4   the same of some pairs of each size, with
//                                  the default costs
//
// In the last two modes, ranks are threads, or processes of dtensor-run.
#include <dtensor/comm/measure_costs.h>
#include <dtensor/comm/run_world.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/redistribute/plan.h>
#include <dtensor/testing/fake_world.h>
#include <tests/redistribute/layouts.h>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace dtensor;

const std::vector<std::vector<int64_t>> kMeshes{
    {4},
    {2, 2},
    {2, 3},
    {2, 4},
    {2, 2, 2}};
const std::vector<Sizes> kSizes{{8, 8}, {5, 7}, {4096, 4096}};

std::vector<SpecPtr> all_specs(const DeviceMesh& mesh, SizesRef sizes) {
  const std::vector<Placement> kinds{
      Replicate(), Shard(0), Shard(1), Partial("sum")};
  std::vector<SpecPtr> specs;
  for (const Placements& layout :
       dtensor::testing::all_layouts(static_cast<size_t>(mesh.ndim()), kinds)) {
    specs.push_back(Spec::make(mesh, layout, sizes, at::kFloat));
  }
  return specs;
}

std::string joined(SizesRef numbers) {
  std::string text;
  for (const int64_t n : numbers) {
    text += (text.empty() ? "" : "x") + std::to_string(n);
  }
  return text;
}

void print(const Spec& from, const Spec& to, const Plan& plan) {
  std::cout << joined(from.mesh().shape()) << ';' << joined(from.sizes()) << ';'
            << to_string(from.placements()) << ';' << to_string(to.placements())
            << ';' << plan.collectives() << ';' << plan.wire_bytes << ';'
            << plan.microseconds;
}

void list_plans() {
  std::cout.precision(std::numeric_limits<double>::max_digits10);
  for (const auto& shape : kMeshes) {
    dtensor::testing::with_fake_world(0, numel(shape), [&] {
      const auto mesh = init_device_mesh(at::kCPU, shape);
      for (const auto& sizes : kSizes) {
        const auto specs = all_specs(mesh, sizes);
        for (const SpecPtr& from : specs) {
          for (const SpecPtr& to : specs) {
            print(*from, *to, *plan(from, to));
            std::cout << '\n';
          }
        }
      }
    });
  }
}

// Returns the microseconds of one execution in the fastest of several batches.
// A batch ends when all ranks of the first mesh dimension have executed it.
double measured(const SpecPtr& from, const SpecPtr& to, double modelled) {
  using Clock = std::chrono::steady_clock;
  constexpr int kBatches = 5;
  constexpr double kBatchTime = 2000;
  const int executions =
      std::clamp(static_cast<int>(kBatchTime / modelled), 1, 20);
  const auto local = at::ones(from->local_sizes(), at::kFloat);
  Group& group = get_group(from->mesh(), 0);
  double best = std::numeric_limits<double>::infinity();
  for (int batch = 0; batch < kBatches; ++batch) {
    group.barrier();
    const auto begin = Clock::now();
    for (int i = 0; i < executions; ++i) {
      redistribute_local(local, from, to);
    }
    group.barrier();
    const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
    best = std::min(best, time.count() / executions);
  }
  return best;
}

// Prints `pairs` random pairs of layouts that need communication, on tensors of
// these sizes.
void print_measured(
    const DeviceMesh& mesh,
    const std::vector<Sizes>& sizes,
    size_t pairs) {
  std::mt19937 random(1);
  while (pairs > 0) {
    const auto specs = all_specs(mesh, sizes[random() % sizes.size()]);
    const SpecPtr& from = specs[random() % specs.size()];
    const SpecPtr& to = specs[random() % specs.size()];
    const auto found = plan(from, to);
    if (found->collectives() == 0) {
      continue;
    }
    --pairs;
    const double time = measured(from, to, found->microseconds);
    if (get_rank() == 0) {
      print(*from, *to, *found);
      std::cout << ';' << time << '\n';
    }
  }
}

void measure_plans(const std::vector<int64_t>& shape) {
  constexpr size_t kPairs = 50;
  run_world(numel(shape), [&] {
    auto mesh = init_device_mesh(at::kCPU, shape);
    mesh = init_device_mesh(at::kCPU, shape, {}, {.cost = measure_costs(mesh)});
    std::vector<Sizes> sizes;
    for (const int64_t edge : {8, 64, 256, 512, 1024, 2048}) {
      sizes.push_back({edge, edge});
    }
    print_measured(mesh, sizes, kPairs);
  });
}

void measure_sample(const std::vector<int64_t>& shape) {
  constexpr size_t kPairs = 24;
  run_world(numel(shape), [&] {
    const auto mesh = init_device_mesh(at::kCPU, shape);
    for (const Sizes& sizes : kSizes) {
      print_measured(mesh, {sizes}, kPairs);
    }
  });
}

std::vector<int64_t> parse_shape(const std::string& text) {
  std::vector<int64_t> shape;
  std::istringstream stream(text);
  for (std::string n; std::getline(stream, n, 'x');) {
    shape.push_back(std::stoll(n));
  }
  return shape;
}

} // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (argc == 3 && mode == "measure") {
    measure_plans(parse_shape(argv[2]));
  } else if (argc == 3 && mode == "sample") {
    measure_sample(parse_shape(argv[2]));
  } else if (argc == 1) {
    list_plans();
  } else {
    std::cerr << "usage: dtensor_plan_list [measure SHAPE | sample SHAPE]\n";
    return 2;
  }
  return 0;
}
