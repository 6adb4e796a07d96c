// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/data_parallel/gathering_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {
namespace {

// Returns a tensor over the elements from `begin` on. The tensor shares the
// storage but is not a view for autograd: a write to it does not change the
// version counters of other tensors.
at::Tensor over(
    const at::Tensor& elements,
    at::ScalarType dtype,
    int64_t begin,
    SizesRef sizes) {
  auto t = at::empty({0}, elements.options().dtype(dtype));
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(elements.storage());
  impl->set_storage_offset(begin);
  impl->set_sizes_contiguous(sizes);
  return t;
}

bool any_requires_grad(const ParameterStates& states) {
  return std::ranges::any_of(
      states, [](const auto& state) { return state.requires_grad; });
}

} // namespace

Gathering::Gathering(
    const FlatLayout& layout,
    c10::ArrayRef<at::ScalarType> dtypes,
    c10::Device device,
    ParameterStates of)
    : of_(std::move(of)),
      any_requires_grad_(any_requires_grad(of_)) {
  const c10::InferenceMode normal(false);
  elements_ = at::empty(
      {layout.unsharded_size()},
      at::TensorOptions()
          .dtype(layout.is_in_bytes() ? at::kByte : dtypes[0])
          .device(device));
  bytes_ = static_cast<int64_t>(elements_.nbytes());
  for (size_t i = 0; i < layout.count(); ++i) {
    const auto offset = layout.unsharded_offset(i);
    const auto item = static_cast<int64_t>(c10::elementSize(dtypes[i]));
    parts_.push_back(over(
        elements_,
        dtypes[i],
        layout.is_in_bytes() ? offset / item : offset,
        layout.tensor(i).sizes));
  }
  release();
}

// Makes a new tensor per use, with its own version counter and autograd
// history.
at::Tensor Gathering::bare(size_t i, const UnshardedLayout& layout) const {
  const c10::InferenceMode normal(false);
  const auto& part = parts_[i];
  auto unsharded =
      over(elements_, part.scalar_type(), part.storage_offset(), part.sizes());
  if (layout.spec != nullptr) {
    unsharded =
        wrap(std::move(unsharded), layout.spec->with_dtype(part.scalar_type()));
    meta_of(unsharded).boundaries = layout.boundaries;
  }
  return unsharded;
}

at::Tensor Gathering::unsharded(
    size_t i,
    const UnshardedLayout& layout,
    const std::function<NodePtr()>& make_node) {
  auto unsharded = bare(i, layout);
  if (of_[i].requires_grad && c10::GradMode::is_enabled()) {
    record(unsharded, i, make_node);
  }
  return unsharded;
}

// Makes the tensor output i of the node that receives the gradients of all
// parameters.
void Gathering::record(
    const at::Tensor& unsharded,
    size_t i,
    const std::function<NodePtr()>& make_node) {
  auto node = node_.lock();
  if (node == nullptr) {
    node = make_node();
    node_ = WeakNode(node);
  }
  torch::autograd::impl::set_gradient_edge(
      unsharded, {std::move(node), static_cast<uint32_t>(i)});
}

// Allocates memory and moves it into the storage of `elements_`. Every tensor
// over that storage (`parts_`, and tensors that graphs have saved) is valid
// again, because tensors refer to the storage and not to its memory.
void Gathering::allocate_memory() {
  is_here_ = true;
  if (std::exchange(has_memory_, true)) {
    return;
  }
  const auto fresh = at::empty({elements_.numel()}, elements_.options());
  auto* from = fresh.storage().unsafeGetStorageImpl();
  auto* to = elements_.storage().unsafeGetStorageImpl();
  to->set_data_ptr_noswap(from->set_data_ptr(at::DataPtr()));
  to->set_nbytes(static_cast<size_t>(bytes_));
  from->set_nbytes(0);
}

void Gathering::free_memory() {
  if (std::exchange(has_memory_, false)) {
    auto* storage = elements_.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(at::DataPtr(nullptr, elements_.device()));
    storage->set_nbytes(0);
  }
}

void Gathering::fill(const FlatLayout& layout, const at::Tensor& gathered) {
  const c10::InferenceMode normal(false);
  const c10::NoGradGuard no_grad;
  allocate_memory();
  layout.unpack(gathered, parts_);
}

void Gathering::fill(const at::Tensor& elements) {
  const c10::InferenceMode normal(false);
  const c10::NoGradGuard no_grad;
  allocate_memory();
  elements_.copy_(elements);
}

bool Gathering::release() {
  if (is_shared_) {
    return false;
  }
  is_here_ = false;
  if (!keeps_memory_) {
    free_memory();
  }
  return true;
}

void Gathering::set_keeps_memory(bool keeps) {
  keeps_memory_ = keeps;
  if (!keeps && !is_here_) {
    free_memory();
  }
}

bool Gathering::can_restart(c10::ArrayRef<at::ScalarType> dtypes) const {
  const auto own_tensors = 1 + parts_.size(); // elements_ and parts_
  return keeps_memory_ && !is_shared_ &&
      elements_.storage().use_count() == own_tensors &&
      std::ranges::equal(
             parts_, dtypes, [](const at::Tensor& part, at::ScalarType dtype) {
               return part.scalar_type() == dtype;
             });
}

void Gathering::restart(ParameterStates of) {
  of_ = std::move(of);
  any_requires_grad_ = any_requires_grad(of_);
  node_ = WeakNode(NodePtr());
  is_here_ = false;
}

void Gathering::keep_memory_if_shared(const at::Tensor& t) {
  const auto& local = is_dtensor(t) ? meta_of(t).local_if_here() : t;
  is_shared_ |= local.defined() && local.has_storage() &&
      local.storage().is_alias_of(elements_.storage());
}

} // namespace dtensor::detail
