// SPDX-License-Identifier: BSD-3-Clause
// Views of the local tensor, squeeze, as_strided, set_ and broadcast_tensors.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorUtils.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/squeeze.h>
#include <c10/util/StringUtil.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/dim_map.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/over_shards_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>
#include <dtensor/ops/scopes/plain_operand_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/ops/variants/view_result_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <algorithm>
#include <string>
#include <vector>

namespace dtensor {
namespace {

using namespace detail;

// Kernel of squeeze() and squeeze(dim), in place or not. It calls
// squeeze(dims), the only form in which the local call can name the dimensions
// of global size 1.
void squeeze_kernel(KernelArgs& args) {
  auto self = args.tensor("self");
  std::vector<int64_t> dims;
  if (args.find("dim") >= 0) {
    dims.push_back(args.integer("dim"));
  } else {
    const auto all = identity_map(self.dim());
    dims.assign(all.begin(), all.end());
  }
  dims = squeezed(self.sizes(), dims);
  const bool in_place = args.base_name().back() == '_';
  args.returns(in_place ? self.squeeze_(dims) : at::squeeze(self, dims));
}

// Kernels of as_strided and as_strided_, which stride through the memory of the
// corresponding plain tensor. No rank has that memory. Also the kernel of set_,
// which gives a tensor the memory of another tensor.

struct Strided {
  at::Tensor self;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;

  int64_t begin() const { // in the memory of self
    return offset - self.storage_offset();
  }
};

Strided strided_from_args(const KernelArgs& args) {
  auto self = args.tensor("self");
  auto sizes = args.at("size").toIntVector();
  auto strides = args.at("stride").toIntVector();
  DTENSOR_CHECK(
      sizes.size() == strides.size() &&
          std::ranges::all_of(
              strides, [](int64_t stride) { return stride >= 0; }),
      "[{}] got sizes [{}] and strides [{}]. Pass one non-negative stride for "
      "each size.",
      args.base_name(),
      c10::Join(", ", sizes),
      c10::Join(", ", strides));
  const auto offset = args.at("storage_offset").toOptional<int64_t>();
  return {
      self,
      std::move(sizes),
      std::move(strides),
      offset.value_or(self.storage_offset())};
}

// Returns the number of elements of memory that these sizes and strides span; 0
// if there are no elements.
int64_t extent(SizesRef sizes, SizesRef strides) {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) {
      return 0;
    }
    last += (sizes[d] - 1) * strides[d];
  }
  return last + 1;
}

bool changes_nothing(const Strided& to) {
  return to.self.sizes() == to.sizes && to.self.strides() == to.strides &&
      to.begin() == 0;
}

// Returns true if this rank's memory is laid out like that of the plain tensor,
// or like a partial term of it.
bool has_plain_memory_layout(const at::Tensor& self) {
  const auto& spec = *spec_of(self);
  return !shards_any_dim(spec) &&
      (!spec.mesh().contains_this_rank() ||
       local_of(self).strides() == spec.strides());
}

// Returns true if the strided elements all lie in the memory of self.
bool stays_in_self(const Strided& to) {
  const auto& self = to.self;
  return extent(self.sizes(), self.strides()) == self.numel() &&
      to.begin() >= 0 &&
      to.begin() + extent(to.sizes, to.strides) <= self.numel();
}

[[noreturn]] void refuse_strided(const Strided& to, const char* what_to_do) {
  DTENSOR_THROW_NOT_IMPLEMENTED(
      "[aten::as_strided] a DTensor has no storage to stride through: {} as "
      "[{}] with strides [{}] and offset {}{}",
      *spec_of(to.self),
      c10::Join(", ", to.sizes),
      c10::Join(", ", to.strides),
      to.offset,
      what_to_do);
}

// Returns a copy in the memory order of the plain tensor, replicated if self is
// sharded.
LocalTensor copy_of(const at::Tensor& self) {
  const auto& from = *spec_of(self);
  auto [local, to] = redistributed(
      "aten::as_strided",
      "self",
      self,
      shards_any_dim(from) ? replicated_placements(from.mesh())
                           : Placements(from.placements()));
  if (!to->mesh().contains_this_rank()) {
    return {local, to};
  }
  const auto memory =
      at::empty_strided(to->sizes(), to->strides(), local.options());
  return {memory.copy_(local), to};
}

// Returns a view of this rank's memory if it is laid out like that of the plain
// tensor, else a view of a copy.
LocalTensor view_of(const Strided& to) {
  if (changes_nothing(to)) {
    return {local_of(to.self).alias(), spec_of(to.self)};
  }
  const bool in_place = has_plain_memory_layout(to.self);
  if (!in_place && !stays_in_self(to)) {
    refuse_strided(
        to,
        ". Use view, transpose, select or slice, or as_strided on to_local().");
  }
  const auto [memory, unsharded] = in_place
      ? LocalTensor{local_of(to.self), spec_of(to.self)}
      : copy_of(to.self);
  auto spec = Spec::make(
      unsharded->mesh(),
      unsharded->placements(),
      to.sizes,
      to.strides,
      unsharded->dtype());
  if (!spec->mesh().contains_this_rank()) {
    return {memory.alias(), std::move(spec)};
  }
  return {
      memory.as_strided(
          to.sizes, to.strides, memory.storage_offset() + to.begin()),
      std::move(spec)};
}

void as_strided_kernel(KernelArgs& args) {
  const auto to = strided_from_args(args);
  auto [local, spec] = view_of(to);
  auto view = wrap(std::move(local), std::move(spec));
  ViewBase(to.self).finish(
      view, {.offset = to.offset, .reason = CopyReason::kRedistributed});
  args.returns(std::move(view));
}

void as_strided_in_place_kernel(KernelArgs& args) {
  const auto to = strided_from_args(args);
  if (!changes_nothing(to) && !has_plain_memory_layout(to.self)) {
    refuse_strided(to, ". Use as_strided, which returns another tensor.");
  }
  auto [local, spec] = view_of(to);
  rewrap(to.self, std::move(local), std::move(spec));
  to.self.unsafeGetTensorImpl()->set_storage_offset(to.offset);
  args.returns(to.self);
}

// Returns the layout of a DTensor, or the shape of a plain tensor.
std::string text_of(const at::Tensor& t) {
  return is_dtensor(t) ? to_string(*spec_of(t))
                       : shape_text(t.scalar_type(), t.sizes());
}

// Kernel of set_(source). Afterwards, self has the memory and the layout of the
// source.
void set_kernel(KernelArgs& args) {
  const auto self = args.tensor("self");
  const auto source = args.tensor("source");
  if (!is_dtensor(source)) {
    check_plain_operand(args.op().schema(), source, 1, *spec_of(self));
  } else if (!is_dtensor(self)) {
    check_plain_operand(args.op().schema(), self, 0, *spec_of(source));
  }
  DTENSOR_CHECK(
      is_dtensor(self) && is_dtensor(source) && self.dtype() == source.dtype(),
      "[{}] cannot set {} to {}. Both must be DTensors of the same dtype.",
      args.base_name(),
      text_of(self),
      text_of(source));
  rewrap(self, local_of(source).alias(), spec_of(source));
  self.unsafeGetTensorImpl()->set_storage_offset(source.storage_offset());
  args.returns(self);
}

// Kernel of broadcast_tensors. Plain numbers become replicated DTensors. A
// plain result would be refused beside DTensors, because it has several
// elements. Numbers that need gradients, and numbers beside a partial tensor,
// which must not differ between ranks, stay plain.
void broadcast_tensors_kernel(KernelArgs& args) {
  auto tensors = args.at("tensors").toTensorVector();
  const auto like = spec_of(*std::ranges::find_if(tensors, is_dtensor));
  const bool beside_partial =
      std::ranges::any_of(tensors, [](const at::Tensor& t) {
        return is_dtensor(t) && spec_of(t)->has_partial();
      });
  std::vector<int64_t> shape;
  for (auto& t : tensors) {
    if (!is_dtensor(t) && t.numel() == 1 && !records(t) && !beside_partial) {
      t = place_plain(t, *like);
    }
    shape = at::infer_size(shape, t.sizes());
  }
  for (auto& t : tensors) {
    t = t.expand(shape);
  }
  args.returns(std::move(tensors));
}

} // namespace

void detail::empty_split_local(KernelArgs& args, const Decision& decision) {
  const std::vector<int64_t> sizes(decision.outputs.size(), 0);
  args.returns(
      at::split_with_sizes(args.tensor("self"), sizes, args.integer("dim")));
}

// Views the local tensor, never copies it.
void detail::view_local(KernelArgs& args, const Decision& decision) {
  const auto sizes = decision.outputs[0]->local_sizes();
  const auto self = args.tensor("self");
  DTENSOR_CHECK(
      at::detail::computeStride(self.sizes(), self.strides(), sizes.vec())
          .has_value(),
      "[{}] this rank's local tensor, of shape {} and strides {}, cannot be "
      "viewed as {} without a copy. Clone it in the contiguous memory format "
      "first.",
      args.base_name(),
      self.sizes(),
      self.strides(),
      at::IntArrayRef(sizes));
  args.returns(self.view(sizes));
}

// Reshapes the local tensor, possibly as a copy.
void detail::reshape_local(KernelArgs& args, const Decision& decision) {
  args.returns(args.tensor("self").reshape(decision.outputs[0]->local_sizes()));
}

DTENSOR_RULES(view_kernels) {
  rules.kernel("squeeze", with_args(squeeze_kernel));
  rules.kernel("squeeze.dim", with_args(squeeze_kernel));
  rules.kernel("broadcast_tensors", with_args(broadcast_tensors_kernel));
  rules.kernel("as_strided", with_args(as_strided_kernel))
      .with_traits({.gradient_from_sizes_only = true});
  rules.kernel("as_strided_", with_args(as_strided_in_place_kernel));
  rules.kernel("set_.source_Tensor", with_args(set_kernel));
}

} // namespace dtensor
