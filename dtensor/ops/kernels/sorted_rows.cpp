// SPDX-License-Identifier: BSD-3-Clause
// Exact division of sorted shards. Every rank contributes samples at regular
// distances, and the ranks count the elements below each sample. The element at
// a global position then lies between two samples, where each rank has few
// elements. The ranks exchange these few elements and find the element.
#include <dtensor/ops/kernels/sorted_rows_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace dtensor::detail {
namespace {

// Elements by key and global index. No two elements of a row are equal.
struct Elements {
  at::Tensor keys;
  at::Tensor indices;

  // Returns the elements of all ranks, concatenated along the last dimension.
  Elements gathered(Group& group) const {
    const auto both = at::stack({keys, indices});
    const auto all = group.all_gather(both, both.dim() - 1);
    return {all[0], all[1]};
  }

  // Sorts the last dimension.
  Elements sorted() const {
    const auto [by_index, first] = stable_sort(indices, -1);
    const auto [sorted_keys, second] = stable_sort(keys.gather(-1, first), -1);
    return {sorted_keys, by_index.gather(-1, second)};
  }

  Elements at(const at::Tensor& positions) const {
    return {keys.gather(-1, positions), indices.gather(-1, positions)};
  }
};

// Returns the bits of a float as an integer with the same order.
at::Tensor
ordered_bits(const at::Tensor& real, at::ScalarType bits, int64_t greatest) {
  // Adding zero makes -0 positive.
  const auto signed_bits = (real + 0.0).contiguous().view(bits);
  const auto ordered = at::where(
      signed_bits.ge(0), signed_bits, signed_bits.bitwise_xor(greatest));
  return ordered.to(at::kLong).masked_fill(real.isnan(), greatest);
}

// Finds elements of this rank's rows.
class Counter {
 public:
  explicit Counter(const SortedRows& rows) : rows_(rows) {
    if (length() == 0) {
      return;
    }
    const auto& keys = rows.keys;
    const auto differs = keys.narrow(1, 1, length() - 1)
                             .ne(keys.narrow(1, 0, length() - 1))
                             .to(at::kLong);
    groups_ = at::cat(
        {at::zeros({keys.size(0), 1}, keys.options()), at::cumsum(differs, 1)},
        1);
    combined_ = combine(groups_, rows.indices);
  }

  int64_t length() const {
    return rows_.keys.size(1);
  }

  // Returns the number of local elements of each row that are less than each
  // element of `elements`, (rows, count).
  at::Tensor below(const Elements& elements) const {
    if (length() == 0) {
      return at::zeros_like(elements.keys);
    }
    const auto wanted = elements.keys.contiguous();
    const auto less = at::searchsorted(rows_.keys, wanted);
    const auto place = less.clamp_max(length() - 1);
    const auto has_equal =
        rows_.keys.gather(1, place).eq(wanted).logical_and(less.lt(length()));
    const auto among_equal = at::searchsorted(
        combined_, combine(groups_.gather(1, place), elements.indices));
    return at::where(has_equal, among_equal, less);
  }

  // Returns the elements at these positions, (rows, ...). Positions behind the
  // end give elements greater than all others.
  Elements at(const at::Tensor& positions) const {
    const auto none = at::full_like(positions, rows_.size);
    if (length() == 0) {
      return {at::full_like(positions, kGreatest), none};
    }
    const auto flat = positions.flatten(1);
    const auto found =
        Elements{rows_.keys, rows_.indices}.at(flat.clamp_max(length() - 1));
    const auto is_behind = positions.ge(length());
    return {
        found.keys.view(positions.sizes()).masked_fill(is_behind, kGreatest),
        found.indices.view(positions.sizes())
            .masked_fill(is_behind, rows_.size)};
  }

 private:
  static constexpr auto kGreatest = std::numeric_limits<int64_t>::max();

  at::Tensor combine(const at::Tensor& groups, const at::Tensor& indices)
      const {
    return (groups * (rows_.size + 1) + indices).contiguous();
  }

  const SortedRows& rows_;
  at::Tensor groups_;   // number of lesser keys, without repetition
  at::Tensor combined_; // order of (key, index)
};

// Returns the number of samples per rank for which samples and windows take the
// same traffic.
int64_t sample_count(const SortedRows& rows, int64_t ranks) {
  const auto product =
      static_cast<double>(rows.largest_shard * std::max<int64_t>(ranks - 1, 1));
  return std::clamp<int64_t>(
      std::llround(std::sqrt(product)), 1, rows.largest_shard);
}

// Returns the elements at the global positions `wanted`, (rows or 1, count).
Elements elements_at(
    const SortedRows& rows,
    const Counter& counter,
    const at::Tensor& wanted,
    Group& group) {
  const auto num_rows = rows.keys.size(0);
  const auto count = sample_count(rows, group.size());
  const auto places = (at::arange(count, wanted.options()) * counter.length())
                          .floor_divide(count)
                          .expand({num_rows, count});
  const auto samples = counter.at(places).gathered(group).sorted();
  const auto local = counter.below(samples);
  const auto global = group.all_reduce(local, ReduceOp::kSum);
  const auto targets = wanted.expand({num_rows, wanted.size(1)}).contiguous();
  const auto sample =
      at::searchsorted(global, targets, /*out_int32=*/false, /*right=*/true) -
      1;
  const auto width = (rows.largest_shard + count - 1) / count + 1;
  const auto window = local.gather(1, sample).unsqueeze(-1) +
      at::arange(width, wanted.options());
  const auto near = counter.at(window).gathered(group).sorted();
  const auto offset = (targets - global.gather(1, sample)).unsqueeze(-1);
  const auto found = near.at(offset);
  return {found.keys.squeeze(-1), found.indices.squeeze(-1)};
}

} // namespace

at::Tensor order_keys(const at::Tensor& t, bool descending) {
  at::Tensor keys;
  if (!t.is_floating_point()) {
    keys = t.to(at::kLong);
  } else if (t.scalar_type() == at::kDouble) {
    keys = ordered_bits(t, at::kLong, std::numeric_limits<int64_t>::max());
  } else {
    keys = ordered_bits(
        t.to(at::kFloat), at::kInt, std::numeric_limits<int32_t>::max());
  }
  return descending ? keys.bitwise_not() : keys;
}

at::Tensor split_positions(const SortedRows& rows, Group& group) {
  const Counter counter(rows);
  const auto options = rows.keys.options();
  const auto num_rows = rows.keys.size(0);
  // Chunks at the end may be empty.
  const auto inner =
      (rows.size + rows.largest_shard - 1) / rows.largest_shard - 1;
  const auto wanted =
      at::arange(1, inner + 1, options).unsqueeze(0) * rows.largest_shard;
  std::vector<at::Tensor> positions{at::zeros({num_rows, 1}, options)};
  if (inner > 0) {
    positions.push_back(
        counter.below(elements_at(rows, counter, wanted, group)));
  }
  positions.push_back(
      at::full({num_rows, group.size() - inner}, counter.length(), options));
  return at::cat(positions, 1);
}

at::Tensor
indices_at(const SortedRows& rows, const at::Tensor& wanted, Group& group) {
  return elements_at(rows, Counter(rows), wanted, group).indices;
}

// The local sizes give the number of rows, because other mesh dimensions may
// shard other dimensions.
ShardRows::ShardRows(const KernelArgs& args, const Decision& decision)
    : shard(args.tensor("self")),
      spec(decision.inputs[0]),
      dim(c10::maybe_wrap_dim(args.integer("dim"), spec->dim())),
      size(spec->sizes()[static_cast<size_t>(dim)]) {
  const auto moved = shard.movedim(dim, -1);
  rows = moved.reshape(
      {numel(moved.sizes().slice(0, moved.sizes().size() - 1)),
       moved.size(-1)});
}

at::Tensor ShardRows::restored(const at::Tensor& t) const {
  auto sizes = shard.sizes().vec();
  sizes.erase(sizes.begin() + dim);
  sizes.push_back(t.size(1));
  return t.reshape(sizes).movedim(-1, dim).contiguous();
}

bool return_without_data(KernelArgs& args, const Decision& decision) {
  const auto shard = args.tensor("self");
  if (shard.is_meta()) {
    const auto sizes = decision.outputs[0]->local_sizes();
    args.returns(
        at::empty(sizes, shard.options()),
        at::empty(sizes, shard.options().dtype(at::kLong)));
  }
  return shard.is_meta();
}

} // namespace dtensor::detail
