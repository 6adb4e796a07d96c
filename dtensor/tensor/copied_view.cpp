// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/copied_view_impl.h>

#include <ATen/ops/empty_strided.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/meta_impl.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace dtensor::detail {
namespace {

std::atomic<int64_t> num_copied_views = 0;

Placements without_shards(const Spec& spec) {
  Placements wanted;
  for (const auto& p : spec.placements()) {
    wanted.push_back(p.is_sharded() ? Replicate() : p);
  }
  return wanted;
}

// Returns the full tensor, except that partial sums stay terms, with the
// strides of the plain tensor.
at::Tensor strided(const PlacedTensor& t) {
  const auto& spec = *t.spec;
  const auto local = redistribute_local(
      t.local, t.spec, spec.with_placements(without_shards(spec)));
  return at::empty_strided(spec.sizes(), spec.strides(), local.options())
      .copy_(local);
}

} // namespace

CopiedFrom::CopiedFrom(
    c10::VariableVersion counter,
    CopyReason why,
    PlacedTensor base_tensor,
    PlacedTensor copied)
    : writes(std::move(counter)),
      seen(writes.current_version()),
      seen_next(seen),
      reason(why),
      base(std::move(base_tensor)),
      copy(std::move(copied)) {
  num_copied_views.fetch_add(1, std::memory_order_relaxed);
}

CopiedFrom::~CopiedFrom() {
  num_copied_views.fetch_sub(1, std::memory_order_relaxed);
}

bool copied_views_exist() {
  return num_copied_views.load(std::memory_order_relaxed) > 0;
}

bool may_overlap(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::vector<std::pair<int64_t, int64_t>> dims; // stride and size
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1) {
      dims.emplace_back(strides[d], sizes[d]);
    }
  }
  std::ranges::sort(dims);
  int64_t extent = 0; // of the dimensions before
  for (const auto& [stride, size] : dims) {
    if (stride <= extent) {
      return true;
    }
    extent += (size - 1) * stride;
  }
  return false;
}

bool can_bring_up_to_date(const CopiedFrom& from) {
  const auto& base = from.base;
  return base.local.defined() && from.reason != CopyReason::kConjugated &&
      from.copy.spec->dtype() == base.spec->dtype() &&
      !may_overlap(base.spec->sizes(), base.spec->strides()) &&
      !may_overlap(from.copy.local.sizes(), from.copy.local.strides());
}

void bring_up_to_date(const at::Tensor& t) {
  auto* from = copied_from(t);
  if (from == nullptr || !from->is_written() || !can_bring_up_to_date(*from)) {
    return;
  }
  const auto& base = from->base;
  const auto& copy = from->copy;
  if (copy.spec->mesh().contains_this_rank() && copy.spec->numel() > 0) {
    const auto taken = strided(base).as_strided(
        copy.spec->sizes(), copy.spec->strides(), copy.offset - base.offset);
    copy.local.copy_(redistribute_local(
        taken,
        copy.spec->with_placements(without_shards(*base.spec)),
        copy.spec));
  }
  from->note_up_to_date(/*is_counted_again=*/false);
}

const char* describe_viewed_tensor(CopyReason reason) {
  switch (reason) {
    case CopyReason::kRedistributed:
      return "a tensor that had to be redistributed";
    case CopyReason::kConjugated:
      return "a tensor that was conjugated or negated";
    case CopyReason::kCopied:
      return "a tensor whose local shards had to be copied";
  }
  return "";
}

void check_up_to_date(const at::Tensor& t) {
  const auto* copied = copied_from(t);
  DTENSOR_CHECK(
      copied == nullptr || !copied->is_written(),
      "[DTensor] {}, a copied view of {}, is out of date: that tensor has been "
      "written to since. Take the view again, or clone() it before the write "
      "to keep its values.",
      *spec_of(t),
      describe_viewed_tensor(copied->reason));
}

} // namespace dtensor::detail
