// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/measure_costs.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace dtensor {
namespace {

constexpr int64_t kLargeElements = 1 << 20;

// Times of collectives, in microseconds.
struct Times {
  double small = 0; // one of 8 bytes
  double large = 0; // an all_gather and a reduce_scatter of kLargeElements
};

// Returns when the device has computed `t`.
void wait_for(const at::Tensor& t) {
  if (!t.is_cpu()) {
    t.view({-1}).narrow(0, 0, 1).to(at::kCPU);
  }
}

// Returns the time of a call: the least mean of several batches. Other programs
// and first allocations lengthen a batch. The barrier starts all ranks
// together.
template <typename Call>
double time_of(Group& group, int calls, Call call) {
  using Clock = std::chrono::steady_clock;
  constexpr int kBatches = 6;
  double least = std::numeric_limits<double>::infinity();
  for (int batch = 0; batch < kBatches; ++batch) {
    group.barrier();
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) {
      wait_for(call());
    }
    const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
    least = std::min(least, time.count() / calls);
  }
  return least;
}

Times measure(Group& group, c10::DeviceType device) {
  constexpr int kSmallCalls = 10;
  constexpr int kLargeCalls = 3;
  const auto number = at::ones({2}, at::device(device).dtype(at::kFloat));
  const int64_t part = kLargeElements / group.size();
  const auto shard = at::ones({part}, at::device(device).dtype(at::kFloat));
  const auto full =
      at::ones({part * group.size()}, at::device(device).dtype(at::kFloat));
  return {
      time_of(
          group,
          kSmallCalls,
          [&] { return group.all_reduce(number, ReduceOp::kSum); }),
      time_of(group, kLargeCalls, [&] { return group.all_gather(shard, 0); }) +
          time_of(group, kLargeCalls, [&] {
            return group.reduce_scatter(full, 0, ReduceOp::kSum);
          })};
}

// Returns the largest value of each number over all ranks of the mesh.
at::Tensor largest(at::Tensor numbers, const DeviceMesh& mesh) {
  for (int64_t dim = 0; dim < mesh.ndim(); ++dim) {
    numbers = get_group(mesh, dim).all_reduce(numbers, ReduceOp::kMax);
  }
  return numbers.to(at::kCPU);
}

LinkCost cost_of(const Times& times, int64_t ranks) {
  constexpr double kLeastTime = 1e-3;
  const double bytes = 2 *
      wire_bytes(CollectiveKind::kAllGather,
                 ranks,
                 static_cast<double>(kLargeElements) * sizeof(float));
  const double latency = std::max(times.small, kLeastTime);
  const double sending =
      std::max({times.large - 2 * latency, times.large / 100, kLeastTime});
  constexpr double kBytesPerMicrosecond = 1e3; // of 1 GB/s
  return {latency, bytes / sending / kBytesPerMicrosecond};
}

} // namespace

std::map<std::string, LinkCost> measure_costs(const DeviceMesh& mesh) {
  std::map<std::string, LinkCost> costs;
  if (!mesh.contains_this_rank()) {
    return costs;
  }
  const auto& names = mesh.mesh_dim_names();
  for (int64_t dim = 0; dim < mesh.ndim(); ++dim) {
    Group& group = get_group(mesh, dim);
    if (group.size() == 1) {
      continue;
    }
    const Times mine = measure(group, mesh.device_type());
    auto numbers = at::empty({2}, at::device(at::kCPU).dtype(at::kFloat));
    float* const values = numbers.mutable_data_ptr<float>();
    values[0] = static_cast<float>(mine.small);
    values[1] = static_cast<float>(mine.large);
    const auto all = largest(numbers.to(mesh.device_type()), mesh);
    const float* const times = all.const_data_ptr<float>();
    const std::string key =
        names.empty() ? std::to_string(dim) : names[static_cast<size_t>(dim)];
    costs[key] = cost_of({times[0], times[1]}, group.size());
  }
  return costs;
}

} // namespace dtensor
