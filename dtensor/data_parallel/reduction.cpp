// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/data_parallel/reduction_impl.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/ScalarType.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/gradient_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

using torch::autograd::variable_list;

// One parameter's shard of the reduced buffer. Waits for the collective.
class ReducedShard final : public Pending {
 public:
  ReducedShard(
      PendingPtr all,
      int64_t begin,
      SizesRef sizes,
      const at::TensorOptions& options)
      : all_(std::move(all)),
        begin_(begin),
        sizes_(sizes.begin(), sizes.end()),
        options_(options) {}
  at::Tensor wait() override {
    if (!part_.defined()) {
      const auto mine = all_->wait().narrow(0, begin_, numel(sizes_));
      part_ = mine.view(sizes_).to(options_);
      all_ = nullptr;
    }
    return part_;
  }

 private:
  PendingPtr all_;
  int64_t begin_;
  Sizes sizes_;
  at::TensorOptions options_;
  at::Tensor part_;
};

// Widens the dtype for accumulation. In bfloat16, a sum would stop growing at
// about 256 times the size of its terms.
std::vector<LocalGradient> in_wider_dtype(
    std::vector<LocalGradient> locals,
    at::ScalarType dtype) {
  for (auto& local : locals) {
    if (local.value.defined()) {
      local.value =
          local.value.to(c10::promoteTypes(local.value.scalar_type(), dtype));
    }
  }
  return locals;
}

bool is_term_of(const Spec& grad, const Spec& unsharded) {
  return grad.mesh().ndim() == 1 && unsharded.placements()[0].is_replicate() &&
      grad.placements()[0].is_partial(ReduceOp::kSum);
}

} // namespace

LocalGradient local_gradient(
    const at::Tensor& grad,
    const SpecPtr& unsharded,
    at::ScalarType dtype) {
  if (!grad.defined()) {
    return {};
  }
  if (unsharded == nullptr) {
    check_plain_gradient(grad);
    return {grad};
  }
  const auto distributed = gradient_as_dtensor(grad, *unsharded);
  const auto& given = spec_of(distributed);
  if (is_term_of(*given, *unsharded)) {
    return {local_of(distributed), /*is_partial_sum_term=*/true};
  }
  const auto summed = given->has_partial()
      ? c10::promoteTypes(given->dtype(), dtype)
      : given->dtype();
  return {redistribute_local(
      local_of(distributed).to(summed),
      given->with_dtype(summed),
      unsharded->with_dtype(summed))};
}

LocalGradient sum_of(const LocalGradient& kept, const LocalGradient& local) {
  if (!kept.value.defined() || !local.value.defined()) {
    return local.value.defined() ? local : kept;
  }
  TORCH_INTERNAL_ASSERT(local.is_partial_sum_term == kept.is_partial_sum_term);
  return {kept.value.add(local.value), local.is_partial_sum_term};
}

SpecPtr gradient_layout(const SpecPtr& spec, bool is_partial_sum_term) {
  if (!is_partial_sum_term) {
    return spec;
  }
  Placements placements(spec->placements().begin(), spec->placements().end());
  placements.back() = Partial(ReduceOp::kSum);
  return spec->with_placements(placements);
}

bool Reduction::has_unreduced(size_t number) const {
  return (number < unreduced_gradients_.size() &&
          unreduced_gradients_[number].has_value()) ||
      std::ranges::binary_search(shard_reduced_numbers_, number);
}

// Adds the gradients of earlier, unreduced passes.
void Reduction::add_unreduced(
    const std::vector<ReducedParameter>& parameters,
    std::vector<LocalGradient>& locals) {
  const auto all = std::exchange(unreduced_gradients_, {});
  for (size_t i = 0; i < parameters.size() && !all.empty(); ++i) {
    locals[i] =
        sum_of(all[parameters[i].number].value_or(LocalGradient()), locals[i]);
  }
}

// Adds `shard_reduced_` to this rank's section of the buffer. Offsets differ if
// parameters were unfrozen since.
void Reduction::add_shard_reduced(
    const at::Tensor& part,
    const std::vector<ReducedParameter>& parameters,
    const FlatLayout& layout) const {
  if (shard_reduced_numbers_.size() == parameters.size()) {
    part.add_(shard_reduced_);
    return;
  }
  const auto rank = static_cast<size_t>(shard_->rank());
  const auto add = [&](int64_t to, int64_t from, int64_t count) {
    part.narrow(0, to, count).add_(shard_reduced_.narrow(0, from, count));
  };
  int64_t header = 0;
  auto from = 2 * static_cast<int64_t>(shard_reduced_numbers_.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (std::ranges::binary_search(
            shard_reduced_numbers_, parameters[i].number)) {
      add(2 * static_cast<int64_t>(i), header, 2);
      const auto count = numel(layout.tensor(i).shard_sizes(rank));
      add(layout.begin_in_rank(i, rank), from, count);
      header += 2;
      from += count;
    }
  }
}

// Packs gradients behind one header per rank. The reduction divides the counts
// in the header too, but they are only compared with 0.
at::Tensor Reduction::pack(
    const FlatLayout& layout,
    const std::vector<LocalGradient>& locals,
    at::ScalarType dtype) const {
  const auto device = c10::Device(device_);
  auto packed = at::empty(
      {layout.size()}, at::TensorOptions().dtype(dtype).device(device));
  std::vector<at::Tensor> unsharded;
  std::vector<double> header;
  for (const auto& local : locals) {
    unsharded.push_back(local.value);
    header.push_back(local.value.defined() ? 1 : 0);
    header.push_back(local.is_partial_sum_term ? 1 : 0);
  }
  layout.pack(unsharded, packed);
  const auto counts = at::tensor(header, at::kDouble).to(packed.options());
  for (size_t rank = 0; rank < layout.rank_sizes().size(); ++rank) {
    layout.header(packed, rank).copy_(counts);
  }
  if (settings.divide_factor) {
    packed.div_(*settings.divide_factor);
  }
  return packed;
}

// Starts the reduction. Returns null while the all-reduce of HSDP is deferred.
// On the CPU the all-reduce is synchronous: no computation overlaps with it,
// and a collective in flight would hold its memory until the slowest rank has
// read it.
PendingPtr Reduction::sum(
    at::Tensor packed,
    const std::vector<ReducedParameter>& parameters,
    const FlatLayout& layout) {
  const auto op = settings.divide_factor ? ReduceOp::kSum : ReduceOp::kAvg;
  if (repeat_ == nullptr && device_ != c10::kCPU) {
    return shard_->reduce_scatter_async(
        std::move(packed), 0, op, {}, layout.rank_sizes());
  }
  auto part = shard_->reduce_scatter(packed, 0, op, layout.rank_sizes());
  packed = at::Tensor();
  if (repeat_ == nullptr) {
    return ready(std::move(part));
  }
  if (shard_reduced_.defined()) {
    add_shard_reduced(part, parameters, layout);
    shard_reduced_ = at::Tensor();
    shard_reduced_numbers_.clear();
  }
  if (!settings.requires_all_reduce) {
    shard_reduced_ = std::move(part);
    for (const auto& parameter : parameters) {
      shard_reduced_numbers_.push_back(parameter.number);
    }
    return nullptr;
  }
  return repeat_->all_reduce_async(std::move(part), op);
}

// Returns a DTensor that waits for the collective when it is used. If there is
// no local gradient, waits for the collective and reads the header at once.
at::Tensor Reduction::result(
    const ReducedParameter& parameter,
    LocalGradient local,
    const PendingPtr& sums,
    const FlatLayout& layout,
    size_t i) const {
  if (!local.value.defined()) { // other ranks may have one
    const auto counts =
        sums->wait().narrow(0, static_cast<int64_t>(2 * i), 2).to(at::kDouble);
    if (counts[0].item<double>() == 0) {
      return {};
    }
    local.is_partial_sum_term = counts[1].item<double>() != 0;
  }
  const auto spec =
      gradient_layout(parameter.layout->spec, local.is_partial_sum_term);
  const auto options =
      at::TensorOptions().dtype(spec->dtype()).device(parts_device_);
  return wrap(
      std::make_shared<ReducedShard>(
          sums,
          layout.begin_in_rank(i, static_cast<size_t>(shard_->rank())),
          spec->local_sizes(),
          options),
      spec,
      at::empty({0}, options));
}

std::pair<variable_list, PendingPtr> Reduction::run(
    const std::vector<ReducedParameter>& parameters,
    const variable_list& gradients,
    at::ScalarType dtype) {
  variable_list results(gradients.size());
  std::vector<LocalGradient> locals;
  std::vector<ShardedSizes> shards;
  for (const auto& [number, layout] : parameters) {
    locals.push_back(
        local_gradient(gradients[number], layout->unsharded, dtype));
    shards.push_back(layout->sharded);
  }
  add_unreduced(parameters, locals);
  if (!settings.requires_sync) {
    locals = in_wider_dtype(std::move(locals), dtype);
    unreduced_gradients_.resize(gradients.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      unreduced_gradients_[parameters[i].number] = std::move(locals[i]);
    }
    return {std::move(results), nullptr};
  }
  const FlatLayout layout(
      shards,
      static_cast<size_t>(shard_->size()),
      2 * static_cast<int64_t>(shards.size()));
  auto sums = sum(pack(layout, locals, dtype), parameters, layout);
  for (size_t i = 0; i < parameters.size() && sums != nullptr; ++i) {
    results[parameters[i].number] =
        result(parameters[i], locals[i], sums, layout, i);
  }
  return {std::move(results), std::move(sums)};
}

} // namespace dtensor::detail
