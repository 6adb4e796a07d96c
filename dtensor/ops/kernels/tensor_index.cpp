// SPDX-License-Identifier: BSD-3-Clause
// x[i, :, j] and x[i, :, j] = values, where x is sharded along indexed
// dimensions. Each rank looks up, or writes, the elements of its shard.
#include <dtensor/ops/kernels/index_kernels_impl.h>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_index_put_impl.h>
#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/tensor/memory_order_impl.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace dtensor::detail {

IndexList as_list(const std::vector<at::Tensor>& indices) {
  IndexList list;
  for (const auto& index : indices) {
    list.push_back(index.defined() ? std::optional(index) : std::nullopt);
  }
  return list;
}

std::vector<at::Tensor> indices_by_dim(
    const c10::IValue& indices,
    const std::function<std::vector<at::Tensor>(const at::Tensor&)>&
        positions_of) {
  std::vector<at::Tensor> by_dim;
  for (const c10::IValue& item : indices.toListRef()) {
    const auto index = item.isNone() ? at::Tensor() : item.toTensor();
    if (index.defined() && is_mask(index)) {
      for (auto& positions : positions_of(index)) {
        by_dim.push_back(std::move(positions));
      }
    } else {
      by_dim.push_back(index);
    }
  }
  return by_dim;
}

namespace {

// Throws LibTorch's error, on all ranks, if indices of a tensor of these sizes
// are out of range. On other devices than the CPU, the kernel reports them.
void check_range(const std::vector<at::Tensor>& indices, SizesRef sizes) {
  std::vector<at::Tensor> given;
  std::vector<int64_t> indexed_sizes;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (d < indices.size() && indices[d].defined()) {
      given.push_back(indices[d].flatten());
      indexed_sizes.push_back(sizes[d]);
    } else if (sizes[d] == 0) {
      return; // nothing is looked up
    }
  }
  if (std::ranges::any_of(given, [](const at::Tensor& index) {
        return !index.is_cpu() || index.numel() == 0;
      })) {
    return;
  }
  for (size_t i = 0; i < given.size(); ++i) {
    const auto size = indexed_sizes[i];
    if (given[i].lt(-size).logical_or_(given[i].ge(size)).any().item<bool>()) {
      // The error names the position of the index.
      std::vector<at::Tensor> zeros(i, at::zeros({1}, at::kLong));
      zeros.push_back(given[i]);
      std::vector<int64_t> ones(i, 1);
      ones.push_back(size);
      at::index(at::zeros({}).expand(ones), as_list(zeros));
    }
  }
}

// The operand "self" and the indices of a call. The indices of sharded
// dimensions are local.
struct IndexedShards {
  const Spec& layout;
  at::Tensor self;
  std::vector<at::Tensor> indices; // 0 for elements of other ranks
  at::Tensor elsewhere;            // true where another rank has the element

  IndexedShards(const KernelArgs& args, const Spec& of_self)
      : layout(of_self),
        self(args.tensor("self")),
        indices(indices_by_dim(args.at("indices"), [](const at::Tensor& mask) {
          return mask.nonzero().unbind(1);
        })) {
    check_range(indices, layout.sizes());
    for (size_t d = 0; d < indices.size(); ++d) {
      if (is_sharded(d)) {
        localize(d);
      }
    }
  }

  // Returns the position of the index dimensions in x[indices]: the position of
  // the first indexed dimension, or 0 if the indexed dimensions are not
  // adjacent.
  int64_t first() const {
    const auto is_given = [](const at::Tensor& t) { return t.defined(); };
    const auto begin = std::ranges::find_if(indices, is_given);
    const auto end = std::find_if_not(begin, indices.end(), is_given);
    return std::any_of(end, indices.end(), is_given) ? 0
                                                     : begin - indices.begin();
  }

  // Returns the sizes of the dimensions that are not indexed.
  std::vector<int64_t> kept_sizes() const {
    std::vector<int64_t> sizes;
    for (int64_t d = 0; d < self.dim(); ++d) {
      if (!is_indexed(static_cast<size_t>(d))) {
        sizes.push_back(self.size(d));
      }
    }
    return sizes;
  }

  // Returns self with a row of zeros in each dimension of an empty shard.
  at::Tensor with_rows() const {
    auto padded = self;
    for (int64_t d = 0; d < self.dim(); ++d) {
      if (is_sharded(static_cast<size_t>(d)) && self.size(d) == 0) {
        auto sizes = padded.sizes().vec();
        sizes[static_cast<size_t>(d)] = 1;
        padded = at::cat({padded, at::zeros(sizes, self.options())}, d);
      }
    }
    return padded;
  }

 private:
  bool is_indexed(size_t d) const {
    return d < indices.size() && indices[d].defined();
  }
  bool is_sharded(size_t d) const {
    return is_indexed(d) && layout.is_sharded(static_cast<int64_t>(d));
  }

  void localize(size_t d) {
    auto& index = indices[d];
    const auto size = layout.sizes()[d];
    const auto global = at::where(index.lt(0), index + size, index);
    const auto is_inside = global.ge(0).logical_and_(global.lt(size));
    const auto local = to_local_indices(
        global, local_intervals(layout, static_cast<int64_t>(d)));
    const auto is_elsewhere = local.lt(0).logical_and_(is_inside);
    // An index that is out of range on all ranks stays out of range on each
    // rank.
    index = local.masked_fill(is_elsewhere, 0)
                .masked_fill_(is_inside.logical_not(), size + 1);
    elsewhere =
        elsewhere.defined() ? elsewhere.logical_or(is_elsewhere) : is_elsewhere;
  }
};

} // namespace

void look_up_tensor_index_local(KernelArgs& args, const Decision& decision) {
  const IndexedShards shards(args, *decision.inputs[0]);
  args.set("self", shards.with_rows());
  args.set("indices", as_list(shards.indices));
  const auto behind =
      shards.kept_sizes().size() - static_cast<size_t>(shards.first());
  auto shape = shards.elsewhere.sizes().vec();
  shape.resize(shape.size() + behind, 1);
  args.returns(in_memory_order(
      args.compute().masked_fill_(shards.elsewhere.reshape(shape), 0),
      decision.outputs[0]->strides()));
}

namespace {

// Elements that this rank writes: one vector of indices for each indexed
// dimension, and values that broadcast to the elements.
struct LocalWrite {
  std::vector<at::Tensor> indices;
  at::Tensor values;
};

// Returns the values of the elements at `positions` in the indices, which have
// `index_sizes`. `positions` has one vector for each index dimension, or one
// vector if there are no index dimensions.
at::Tensor values_at(
    const IndexedShards& shards,
    const at::Tensor& values,
    at::IntArrayRef index_sizes,
    const std::vector<at::Tensor>& positions) {
  if (values.numel() == 1) {
    return values.reshape({}); // possibly on another device
  }
  const auto first = shards.first();
  auto shape = shards.kept_sizes();
  shape.insert(shape.begin() + first, index_sizes.begin(), index_sizes.end());
  if (!at::is_expandable_to(values.sizes(), shape)) {
    at::index_put( // throws
        shards.with_rows(),
        as_list(shards.indices),
        values);
  }
  auto all = values.expand(shape);
  if (index_sizes.empty()) {
    all = all.unsqueeze(first);
  }
  std::vector<at::Tensor> indices(static_cast<size_t>(first));
  indices.insert(indices.end(), positions.begin(), positions.end());
  return at::index(all, as_list(indices));
}

LocalWrite local_write(const IndexedShards& shards, const at::Tensor& values) {
  std::vector<at::Tensor> given{shards.elsewhere};
  for (const auto& index : shards.indices) {
    if (index.defined()) {
      given.push_back(index);
    }
  }
  given = at::broadcast_tensors(given);
  const auto index_sizes = given[0].sizes().vec();
  if (index_sizes.empty()) {
    for (auto& t : given) {
      t = t.unsqueeze(0);
    }
  }
  const auto positions = given[0].logical_not().nonzero().unbind(1);
  LocalWrite write{{}, values_at(shards, values, index_sizes, positions)};
  auto next = given.begin();
  for (const auto& index : shards.indices) {
    write.indices.push_back(
        index.defined() ? at::index(*++next, as_list(positions))
                        : at::Tensor());
  }
  return write;
}

} // namespace

void write_tensor_index_local(KernelArgs& args, const Decision& decision) {
  const IndexedShards shards(args, *decision.inputs[0]);
  const auto write = local_write(shards, args.tensor("values"));
  const bool in_place = args.base_name().back() == '_';
  auto result = in_place ? shards.self : shards.self.clone();
  at::_index_put_impl_(
      result, as_list(write.indices), write.values, args.flag("accumulate"));
  if (!in_place) {
    result = in_memory_order(result, decision.outputs[0]->strides());
  }
  args.returns(std::move(result));
}

} // namespace dtensor::detail
