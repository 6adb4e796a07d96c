// SPDX-License-Identifier: BSD-3-Clause
// Fourier transforms. Dimensions that are not transformed may be sharded, and a
// sharded dimension that is transformed becomes unsharded, by an all_to_all if
// another dimension can be sharded. Transforms are linear over the real
// numbers, which is enough for sums over ranks.
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <c10/core/ScalarType.h>
#include <c10/core/WrapDimMinimal.h>

namespace dtensor {
namespace {

using namespace detail;

// Returns the transformed dimensions; none if the list is empty.
std::vector<int64_t> transformed(const OpCall& call) {
  auto dims = call.ints_arg("dim");
  for (auto& d : dims) {
    d = c10::maybe_wrap_dim(d, call.inputs[0].dim());
  }
  return dims;
}

Strategies transform(const OpCall& call, int64_t mesh_dim) {
  return linear_move_strategies(call, mesh_dim, without_dims(call, "dim"));
}

// Returns the result with this size in the last transformed dimension. This
// dimension may hold only the half that determines the other half.
std::vector<OutputMeta>
with_last_size(const OpCall& call, int64_t size, at::ScalarType dtype) {
  const auto& self = *call.inputs[0].spec;
  const auto dims = transformed(call);
  Sizes sizes(self.sizes());
  if (!dims.empty()) {
    sizes[static_cast<size_t>(dims.back())] = size;
  }
  return {dense(sizes, dtype)};
}

std::vector<OutputMeta> r2c_meta(const OpCall& call) {
  const auto dims = transformed(call);
  const auto size = dims.empty()
      ? 0
      : call.inputs[0].sizes()[static_cast<size_t>(dims.back())];
  return with_last_size(
      call,
      call.bool_arg("onesided") ? size / 2 + 1 : size,
      c10::toComplexType(call.inputs[0].spec->dtype()));
}

std::vector<OutputMeta> c2r_meta(const OpCall& call) {
  return with_last_size(
      call,
      call.int_arg("last_dim_size"),
      c10::toRealValueType(call.inputs[0].spec->dtype()));
}

// Marks calls of shards with elements. FFT libraries refuse an empty shard.
void note_elements(const OpCall& call, Decision& decision) {
  decision.is_plain_call = has_local_elements(decision.layout_of(call, 0));
}

} // namespace

DTENSOR_RULES(fft) {
  const std::pair<const char*, MetaRule> transforms[] = {
      {"_fft_c2c", dense_like_first},
      {"_fft_r2c", r2c_meta},
      {"_fft_c2r", c2r_meta}};
  for (const auto& [name, meta] : transforms) {
    rules.dim_rule(name, transform)
        .with_meta(meta)
        .with_localize(note_elements)
        .with_local_kernel(boxed(fft_of_empty_local))
        .with_traits({.result_order_varies = true})
        .as_region();
  }
}

} // namespace dtensor
