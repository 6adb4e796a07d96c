// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/group/backend_call_impl.h>

#include <ATen/core/Tensor.h>

#include <array>

namespace dtensor::detail {
namespace {

struct ProfilerNames {
  std::string_view synchronous;
  std::string_view asynchronous = {};
};

// In the order of CollectiveKind.
constexpr std::array<ProfilerNames, 11> kNames = {{
    {"dtensor::all_reduce", "dtensor::all_reduce_async"},
    {"dtensor::all_gather", "dtensor::all_gather_async"},
    {"dtensor::reduce_scatter", "dtensor::reduce_scatter_async"},
    {"dtensor::all_to_all", "dtensor::all_to_all_async"},
    {"dtensor::broadcast"},
    {"dtensor::scatter"},
    {"dtensor::gather"},
    {"dtensor::send"},
    {"dtensor::recv"},
    {"dtensor::barrier"},
    {"dtensor::all_gather_strings"},
}};
constexpr ProfilerNames kShardDimAllToAll = {
    "dtensor::shard_dim_alltoall",
    "dtensor::shard_dim_alltoall_async"};

bool is_dense(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

} // namespace

std::string_view profiler_name(const Collective& collective) {
  const ProfilerNames& names = collective.shard_dim >= 0
      ? kShardDimAllToAll
      : kNames.at(static_cast<size_t>(collective.kind));
  return collective.is_async ? names.asynchronous : names.synchronous;
}

void make_dense(Collective& collective) {
  for (at::Tensor& input : collective.inputs) {
    if (!is_dense(input)) {
      input = input.resolve_conj().resolve_neg().contiguous();
    }
  }
}

} // namespace dtensor::detail
