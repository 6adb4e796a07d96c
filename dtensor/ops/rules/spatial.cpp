// SPDX-License-Identifier: BSD-3-Clause
// Operators on (samples..., channels, space...) that compute each channel by
// itself: helpers for their rules, and pooling.
#include <dtensor/ops/rules/spatial_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/kernel_window_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <string>

namespace dtensor {

void detail::add_linear_in_first(const OpCall& call, Strategies& strategies) {
  if (!c10::isIntegralType(call.inputs[0].spec->dtype(), true)) {
    strategies.push_back(replicated_except(
        call,
        Placements(call.outputs.size(), partial_sum()),
        {{0, partial_sum()}}));
  }
}

int64_t detail::sharded_space(
    const OpCall& call,
    const OpInput& input,
    int64_t mesh_dim,
    int64_t first) {
  const auto& now = input.placement(mesh_dim);
  const bool may_stay = now.is_shard() && now.dim() >= first &&
      is_sharded_alone(input, mesh_dim, now.dim()) &&
      std::ranges::none_of(call.inputs, [&](const OpInput& other) {
                          return other.placement(mesh_dim).is_strided_shard();
                        });
  return may_stay ? now.dim() : 0;
}

bool detail::is_worth_exchanging(
    const OpInput& input,
    int64_t mesh_dim,
    int64_t dim,
    int64_t result,
    const NeededRows& needed) {
  const auto size = input.sizes()[static_cast<size_t>(dim)];
  const auto ranks = input.spec->mesh().size(mesh_dim);
  std::vector<Interval> rows;
  for (const auto& windows : chunks(result, ranks)) {
    rows.push_back(clip(needed(windows), size));
  }
  return ranks == 1 ||
      (result >= ranks &&
       received_rows(chunks(size, ranks), rows) < (ranks - 1) * size);
}

detail::KernelWindow detail::pool_window(const OpCall& call, size_t i) {
  const auto kernel = call.ints_arg("kernel_size");
  const auto stride = call.ints_arg("stride");
  return {
      element_for(kernel, i),
      element_for(stride.empty() ? kernel : stride, i),
      element_for(call.ints_arg("padding"), i),
      call.has_arg("dilation") ? element_for(call.ints_arg("dilation"), i) : 1};
}

std::vector<int64_t>
detail::windows_of(const OpCall& call, SizesRef space, bool ceil_mode) {
  std::vector<int64_t> counts;
  for (size_t i = 0; i < space.size(); ++i) {
    const auto window = pool_window(call, i);
    DTENSOR_CHECK(
        window.stride > 0 && space[i] + 2 * window.padding >= window.reach(),
        "[{}] a kernel of {} with padding {} and stride {} does not fit "
        "dimension {} of the space of {}. Use a smaller kernel or more "
        "padding.",
        call.name(),
        window.kernel,
        window.padding,
        window.stride,
        i,
        *call.inputs[0].spec);
    counts.push_back(window.count(space[i], ceil_mode));
  }
  return counts;
}

DimRule detail::before_space(int64_t space, Linear linear) {
  return [space, linear](const OpCall& call, int64_t) {
    Strategies all;
    for (int64_t d = 0; d < call.inputs[0].dim() - space; ++d) {
      all.push_back(all_alike(call, Shard(d)));
    }
    if (linear == Linear::kInFirst) {
      add_linear_in_first(call, all);
    }
    return all;
  };
}

LocalizeRule detail::note_space(int64_t space) {
  return [space](const OpCall& call, Decision& decision) {
    const auto& self = decision.layout_of(call, 0);
    decision.is_plain_call = has_local_elements(self);
    for (auto dim = self.dim() - space; dim < self.dim(); ++dim) {
      if (self.is_sharded(dim)) {
        decision.is_plain_call = false;
        keep_layout(call, decision, 0);
      }
    }
  };
}

Sizes detail::with_space(
    const OpCall& call,
    const std::vector<int64_t>& space) {
  const auto sizes = call.inputs[0].sizes();
  DTENSOR_CHECK(
      sizes.size() > space.size(),
      "[{}] needs {} of space after the channels, got {}. Pass (samples, "
      "channels, space...).",
      call.name(),
      pluralize(space.size(), "dimension"),
      *call.inputs[0].spec);
  Sizes result(
      sizes.begin(), sizes.end() - static_cast<std::ptrdiff_t>(space.size()));
  result.append(space.begin(), space.end());
  return result;
}

OpRule& detail::add_spatial(
    RuleRegistry& rules,
    const std::string& name,
    DimRule rule) {
  return rules.dim_rule(name, std::move(rule))
      .with_local_kernel(boxed(zeros_if_empty));
}

void detail::add_spatial_backward(
    RuleRegistry& rules,
    const std::string& name,
    int64_t space) {
  add_spatial(rules, name, before_space(space, Linear::kInFirst))
      .with_meta([](const OpCall& call) {
        return std::vector{dense_like(*call.input("self")->spec)};
      })
      .with_traits({.gradient_from_sizes_only = true});
}

namespace {

using namespace detail;

// Returns true if each rank that has windows has as many rows as the kernel.
bool has_rows_for_kernel(
    const KernelWindow& window,
    int64_t size,
    const std::vector<Interval>& windows_of_ranks) {
  return std::ranges::all_of(windows_of_ranks, [&](const Interval& windows) {
    const auto rows = clip(window.aligned_rows(windows), size);
    return windows.size() == 0 || rows.size() >= window.kernel;
  });
}

// Returns the strategies of pooling of windows. If spatial dimensions are
// sharded, ranks exchange the rows that their windows cover.
DimRule pool(int64_t space, Linear linear = Linear::kNo) {
  // LibTorch's avg_pool3d refuses fewer rows than the kernel has, although
  // padding counts as rows.
  const bool needs_rows = space == 3 && linear == Linear::kInFirst;
  return [space, needs_rows, others = before_space(space, linear)](
             const OpCall& call, int64_t mesh_dim) {
    auto all = others(call, mesh_dim);
    const auto& self = call.inputs[0];
    const auto first = self.dim() - space;
    const auto dim = sharded_space(call, self, mesh_dim, first);
    if (dim == 0) {
      return all;
    }
    const auto window = pool_window(call, static_cast<size_t>(dim - first));
    const auto needed = [&](Interval windows) {
      return window.aligned_rows(windows);
    };
    const auto result = call.outputs[0].sizes[static_cast<size_t>(dim)];
    const auto ranks = call.mesh.size(mesh_dim);
    const auto size = self.sizes()[static_cast<size_t>(dim)];
    if (is_worth_exchanging(self, mesh_dim, dim, result, needed) &&
        (!needs_rows ||
         has_rows_for_kernel(window, size, chunks(result, ranks)))) {
      all.push_back(all_alike(call, Shard(dim)));
    }
    return all;
  };
}

// Adds pooling of windows, with the autograd of the local operator.
OpRule& add_pool(
    RuleRegistry& rules,
    const std::string& name,
    int64_t space,
    Linear linear = Linear::kNo) {
  return rules.dim_rule(name, pool(space, linear))
      .with_localize(note_space(space))
      .with_local_kernel(pool_local(space))
      .as_region();
}

// Returns the strategies of fractional pooling. Its random samples always have
// a sample dimension: (samples, channels, coordinates).
DimRule fractional_max_pool(int64_t space) {
  return [space](const OpCall& call, int64_t) {
    const auto before = call.inputs[0].dim() - space;
    Strategies all;
    for (int64_t d = 0; d < before; ++d) {
      all.push_back({{Shard(d), Shard(d)}, {Shard(d), Shard(d + 2 - before)}});
    }
    return all;
  };
}

// --- shapes -----------------------------------------------------------------

std::vector<OutputMeta> sized_by_output_size(const OpCall& call) {
  return {dense(
      with_space(call, call.ints_arg("output_size")),
      call.inputs[0].spec->dtype())};
}

// Performs the checks of max_pool3d_with_indices that do not depend on
// elements.
void check_max_pool3d(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  DTENSOR_CHECK(
      self.dim() == 4 || self.dim() == 5,
      "[{}] needs (samples, channels, space...) with three dimensions of "
      "space, got {}. Reshape it.",
      call.name(),
      self);
  const auto sizes = self.sizes();
  bool fits = true;
  for (size_t i = 0; i < 3; ++i) {
    const auto window = pool_window(call, i);
    fits = fits && sizes[sizes.size() - 3 + i] > 0 &&
        window.padding * 2 <= window.reach();
  }
  DTENSOR_CHECK(
      fits && sizes[sizes.size() - 4] > 0,
      "[{}] {} has no channels or no space, or padding {} is more than half of "
      "the kernel {}. Use less padding.",
      call.name(),
      self,
      c10::IntArrayRef(call.ints_arg("padding")),
      c10::IntArrayRef(call.ints_arg("kernel_size")));
}

std::vector<OutputMeta> max_pool3d_meta(const OpCall& call) {
  check_max_pool3d(call);
  const auto& self = *call.inputs[0].spec;
  const auto sizes = with_space(
      call,
      windows_of(
          call,
          self.sizes().slice(self.sizes().size() - 3),
          call.bool_arg("ceil_mode")));
  return {dense(sizes, self.dtype()), dense(sizes, at::kLong)};
}

} // namespace

DTENSOR_RULES(spatial) {
  for (const int64_t space : {2, 3}) {
    const auto d = std::to_string(space) + "d";
    const auto linear = before_space(space, Linear::kInFirst);
    add_pool(rules, "avg_pool" + d, space, Linear::kInFirst);
    add_spatial(rules, "_adaptive_avg_pool" + d, linear)
        .with_meta(sized_by_output_size);
    add_spatial(rules, "adaptive_max_pool" + d, before_space(space));
    add_spatial(rules, "fractional_max_pool" + d, fractional_max_pool(space));
    add_spatial(rules, "max_unpool" + d, linear)
        .with_meta(sized_by_output_size);
    for (const std::string& name :
         {"avg_pool" + d,
          "_adaptive_avg_pool" + d,
          "adaptive_max_pool" + d,
          "fractional_max_pool" + d,
          "max_pool" + d + "_with_indices"}) {
      add_spatial_backward(rules, name + "_backward", space);
    }
  }
  // Without gradients, LibTorch's max_pool1d reads memory.
  add_pool(rules, "max_pool1d", 1);
  add_pool(rules, "max_pool2d_with_indices", 2);
  add_pool(rules, "max_pool3d_with_indices", 3).with_meta(max_pool3d_meta);
}

} // namespace dtensor
