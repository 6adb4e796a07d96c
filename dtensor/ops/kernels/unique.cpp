// SPDX-License-Identifier: BSD-3-Clause
// unique of a sharded tensor, for its elements or for slices. Each rank finds
// the unique elements of its shard, and the ranks gather only these. The
// inverse indices stay sharded.
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/over_shards_impl.h>
#include <dtensor/ops/kernels/row_exchange_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <ATen/ops/_unique2.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/unique_dim.h>
#include <ATen/ops/unique_dim_consecutive.h>
#include <ATen/ops/zeros.h>
#include <c10/core/WrapDimMinimal.h>

#include <optional>
#include <tuple>

namespace dtensor {
namespace {

using namespace detail;

// Arguments of a call. It compares all elements, or the slices along a
// dimension.
struct UniqueCall {
  bool consecutive;          // only neighbours are compared
  std::optional<int64_t> by; // dimension of the slices
  bool inverse;
  bool counts;

  explicit UniqueCall(const KernelArgs& args)
      : consecutive(args.name().ends_with("_consecutive")),
        inverse(args.flag("return_inverse")),
        counts(args.find("return_counts") >= 0 && args.flag("return_counts")) {
    if (args.find("dim") < 0 || args.is_none("dim") || takes_elements(args)) {
      return;
    }
    by = c10::maybe_wrap_dim(args.integer("dim"), args.tensor("self").dim());
    inverse = counts = true; // LibTorch computes them in any case
  }

  // Returns true if the slices are elements, as LibTorch decides.
  static bool takes_elements(const KernelArgs& args) {
    return args.name() == "aten::unique_consecutive" &&
        args.integer("dim") == 0 && args.tensor("self").dim() == 1;
  }

  // Returns the placements in which the elements of each rank are adjacent.
  Placements placements(PlacementsRef from) const {
    auto result = without_partial(from);
    for (auto& p : result) {
      if (p.is_sharded() && (consecutive || by)) {
        p = Shard(by.value_or(0));
      }
    }
    return result;
  }

  // Returns the values; for each element, its place among the values; and for
  // each value, its number of occurrences.
  std::tuple<at::Tensor, at::Tensor, at::Tensor>
  run(const at::Tensor& t, bool with_inverse, bool with_counts) const {
    if (by) {
      return consecutive
          ? at::unique_dim_consecutive(t, *by, with_inverse, with_counts)
          : at::unique_dim(t, *by, /*sorted=*/true, with_inverse, with_counts);
    }
    return consecutive
        ? at::unique_consecutive(t, with_inverse, with_counts)
        : at::_unique2(t, /*sorted=*/true, with_inverse, with_counts);
  }
};

// The values of this rank's shard, or of the shards of several ranks.
struct UniqueElements {
  at::Tensor values;
  at::Tensor inverse; // for each element of the shard, its place in `values`
  at::Tensor counts;  // for each value, its occurrences in the shard

  // Adds the values of the other ranks of a group. Inverse and counts still
  // refer to the shard only.
  void merge(Group& group, const UniqueCall& call) {
    const auto dim = call.by.value_or(0);
    const auto ranges = ranges_of_ranks(group, values, dim);
    Sizes sizes;
    for (const auto& range : ranges) {
      sizes.push_back(range.size());
    }
    const auto all = group.all_gather(values, dim, sizes);
    const auto merged =
        call.run(all, /*with_inverse=*/true, /*with_counts=*/false);
    const auto& own = ranges[static_cast<size_t>(group.rank())];
    const auto places = std::get<1>(merged).narrow(0, own.begin, own.size());
    values = std::get<0>(merged);
    if (call.inverse) {
      inverse = places.index_select(0, inverse.flatten()).view(inverse.sizes());
    }
    if (call.counts) {
      counts = at::zeros({values.size(dim)}, counts.options())
                   .index_copy(0, places, counts);
    }
  }
};

bool is_on_shards(const at::Tensor& t) {
  return is_dtensor(t) && !t.is_meta() && t.numel() > 0 &&
      spec_of(t)->mesh().contains_this_rank() && shards_any_dim(*spec_of(t));
}

// Returns the sum over the ranks that have different shards.
at::Tensor sum_of_shards(const at::Tensor& counts, const Spec& shards) {
  const auto whole = replicated_spec(shards, counts);
  const auto terms =
      whole->with_placements(sums_of_shards(shards.placements()));
  return redistribute_local(counts, terms, whole);
}

// Merges the values of the last mesh dimension first, because its ranks have
// adjacent shards.
UniqueElements elements_of_shards(
    const at::Tensor& shard,
    const Spec& spec,
    const UniqueCall& call) {
  UniqueElements found;
  std::tie(found.values, found.inverse, found.counts) =
      call.run(shard, call.inverse, call.counts);
  for (int64_t m = spec.mesh().ndim() - 1; m >= 0; --m) {
    if (spec.placements()[static_cast<size_t>(m)].is_sharded()) {
      found.merge(get_group(spec.mesh(), m), call);
    }
  }
  if (call.counts) {
    found.counts = sum_of_shards(found.counts, spec);
  }
  return found;
}

// Returns the layout of the inverse indices: the layout of the elements, or of
// the slices.
SpecPtr layout_of_inverse(const Spec& self, const UniqueCall& call) {
  if (!call.by) {
    return Spec::make(self.mesh(), self.placements(), self.sizes(), at::kLong);
  }
  Placements placements(self.placements().begin(), self.placements().end());
  for (auto& p : placements) {
    p = p.is_sharded() ? Shard(0) : p;
  }
  const Sizes sizes{self.sizes()[static_cast<size_t>(*call.by)]};
  return Spec::make(self.mesh(), placements, sizes, at::kLong);
}

// Kernel of the operators. LibTorch sorts for sorted=false, too.
void unique_kernel(KernelArgs& args) {
  const auto self = args.tensor("self");
  if (!is_on_shards(self)) {
    call_on_replicated(args);
    return;
  }
  const UniqueCall call(args);
  const auto [local, spec] = redistributed(
      args.base_name(),
      "self",
      self,
      call.placements(spec_of(self)->placements()));
  const auto found = elements_of_shards(local, *spec, call);
  const auto on_all = [&like = *spec](const at::Tensor& t) {
    return wrap(t, replicated_spec(like, t));
  };
  const auto none = found.values.new_empty({0}, at::kLong);
  const auto inverse = call.inverse
      ? wrap(found.inverse, layout_of_inverse(*spec, call))
      : on_all(none);
  if (args.find("return_counts") >= 0) {
    args.returns(
        on_all(found.values),
        inverse,
        on_all(call.counts ? found.counts : none));
  } else {
    args.returns(on_all(found.values), inverse);
  }
}

} // namespace

DTENSOR_RULES(unique) {
  for (const auto* name :
       {"_unique",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "unique_dim_consecutive"}) {
    rules.kernel(name, with_args(unique_kernel));
  }
}

} // namespace dtensor
