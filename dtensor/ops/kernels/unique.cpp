// SPDX-License-Identifier: BSD-3-Clause
// unique of a sharded tensor. Each rank finds the elements of its shard, and
// the ranks gather only these. The inverse indices stay sharded.
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/selected_rows_impl.h>
#include <dtensor/ops/kernels/whole_argument_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <ATen/ops/_unique2.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>

namespace dtensor {
namespace {

using namespace detail;

struct Wanted {
  bool inverse;
  bool counts;
};

// The sorted elements of this rank's shard, or of the shards of several ranks.
struct UniqueElements {
  at::Tensor values;
  at::Tensor inverse; // of each element of the shard: its place in `values`
  at::Tensor counts;  // of each value: its occurrences in the shard

  // Adds the elements of the other ranks of a group. Inverse and counts remain
  // those of the shard.
  void merge(Group& group, const Wanted& wanted) {
    const auto ranges = ranges_of_ranks(group, values);
    Sizes sizes;
    for (const auto& range : ranges) {
      sizes.push_back(range.size());
    }
    const auto all = group.all_gather(values, 0, sizes);
    const auto merged =
        at::_unique2(all, /*sorted=*/true, /*return_inverse=*/true);
    const auto& own = ranges[static_cast<size_t>(group.rank())];
    const auto places = std::get<1>(merged).narrow(0, own.begin, own.size());
    values = std::get<0>(merged);
    if (wanted.inverse) {
      inverse = places.index_select(0, inverse.flatten()).view(inverse.sizes());
    }
    if (wanted.counts) {
      counts = at::zeros({values.size(0)}, counts.options())
                   .index_copy(0, places, counts);
    }
  }
};

bool is_on_shards(const at::Tensor& t) {
  return is_dtensor(t) && !t.is_meta() &&
      spec_of(t)->mesh().contains_this_rank() &&
      std::ranges::any_of(spec_of(t)->placements(), [](const Placement& p) {
           return p.is_sharded();
         });
}

// Returns the sum over the ranks that have different shards.
at::Tensor sum_of_shards(const at::Tensor& counts, const Spec& shards) {
  const auto whole = replicated_spec(shards, counts);
  Placements terms(whole->placements().begin(), whole->placements().end());
  for (size_t m = 0; m < terms.size(); ++m) {
    if (shards.placements()[m].is_sharded()) {
      terms[m] = Partial(ReduceOp::kSum);
    }
  }
  return redistribute_local(counts, whole->with_placements(terms), whole);
}

UniqueElements elements_of_shards(
    const at::Tensor& shard,
    const Spec& spec,
    const Wanted& wanted) {
  UniqueElements found;
  std::tie(found.values, found.inverse, found.counts) =
      at::_unique2(shard, /*sorted=*/true, wanted.inverse, wanted.counts);
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    if (spec.placements()[static_cast<size_t>(m)].is_sharded()) {
      found.merge(get_group(spec.mesh(), m), wanted);
    }
  }
  if (wanted.counts) {
    found.counts = sum_of_shards(found.counts, spec);
  }
  return found;
}

// Kernel of _unique2(self, sorted, return_inverse, return_counts), and of
// _unique, which returns no counts.
void unique_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  KernelArgs args(op, *stack);
  const auto self = args.tensor("self");
  if (!args.flag("sorted") || !is_on_shards(self)) {
    call_on_whole(op, stack);
    return;
  }
  const auto from = spec_of(self);
  const auto spec = from->with_placements(without_partial(from->placements()));
  if (spec != from) {
    before_redistributing(op.schema().name(), "self", from, spec->placements());
  }
  const bool has_counts = args.find("return_counts") >= 0;
  const Wanted wanted{
      args.flag("return_inverse"), has_counts && args.flag("return_counts")};
  const auto found = elements_of_shards(
      redistribute_local(local_of(self), from, spec), *spec, wanted);
  const auto on_all = [&](const at::Tensor& t) {
    return wrap(t, replicated_spec(*spec, t));
  };
  const auto sharded_places =
      Spec::make(spec->mesh(), spec->placements(), spec->sizes(), at::kLong);
  const auto inverse = wanted.inverse ? wrap(found.inverse, sharded_places)
                                      : on_all(found.inverse);
  if (has_counts) {
    args.returns(on_all(found.values), inverse, on_all(found.counts));
  } else {
    args.returns(on_all(found.values), inverse);
  }
}

} // namespace

DTENSOR_RULES(unique) {
  rules.kernel("_unique", unique_kernel);
  rules.kernel("_unique2", unique_kernel);
}

} // namespace dtensor
