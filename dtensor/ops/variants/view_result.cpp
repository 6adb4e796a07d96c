// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/variants/view_result_impl.h>

#include <ATen/ops/alias.h>
#include <dtensor/ops/path/in_backward_impl.h>

namespace dtensor::detail {
namespace {

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() ==
      b.storage().unsafeGetStorageImpl();
}

// Returns the storage offset of `t` in elements of the dtype of `view`.
int64_t in_elements_of(const at::Tensor& view, const at::Tensor& t) {
  const int64_t offset = t.storage_offset();
  return offset == 0 ? 0
                     : offset * static_cast<int64_t>(t.itemsize()) /
          static_cast<int64_t>(view.itemsize());
}

ViewFacts& view_facts_of(const at::Tensor& t) {
  auto& facts = meta_of(t).view_facts;
  if (facts == nullptr) {
    facts = c10::make_intrusive<ViewFacts>();
  }
  return *facts;
}

// Returns the counter of writes to the memory of `t`.
const c10::VariableVersion& write_counter(const at::Tensor& t) {
  if (!t.is_inference()) {
    return t.unsafeGetTensorImpl()->version_counter();
  }
  auto& writes = view_facts_of(t).writes;
  if (!writes.enabled()) {
    writes = c10::VariableVersion(0);
  }
  return writes;
}

// Returns `t` in its current shape, which in-place operators may change later.
PlacedTensor placed(const at::Tensor& t) {
  return {at::alias(meta_of(t).local()), spec_of(t), t.storage_offset()};
}

// Returns the origin of `view`, a copy of a tensor that was itself copied from
// `from.base`. A write to either copy leaves the other copy out of date.
CopiedFromPtr copy_of_copy(
    const CopiedFrom& from,
    const at::Tensor& view,
    CopyReason reason) {
  auto copied = c10::make_intrusive<CopiedFrom>(
      from.writes,
      from.reason == CopyReason::kConjugated ? from.reason : reason,
      from.base,
      placed(view));
  copied->seen = from.seen;
  copied->seen_next = from.seen_next;
  return copied;
}

} // namespace

ViewPlace ViewBase::place_of(
    const at::Tensor& local,
    const Decision& decision,
    size_t index) const {
  if (!base_.defined()) {
    return {};
  }
  const auto offset = decision.shapes_from_results
      ? local.storage_offset() - in_elements_of(local, meta_of(base_).local())
      : decision.offsets[index];
  const bool conjugated = local.is_conj() || local.is_neg();
  return {
      in_elements_of(local, base_) + offset,
      conjugated                   ? CopyReason::kConjugated
          : decision.redistributes ? CopyReason::kRedistributed
                                   : CopyReason::kCopied};
}

void ViewBase::finish(const at::Tensor& view, const ViewPlace& place) const {
  if (!base_.defined()) {
    return;
  }
  set_offset(view, place.offset);
  if (base_.is_inference()) {
    const auto& counter = write_counter(base_);
    view_facts_of(view).writes = counter;
  } else if (const auto& facts = meta_of(base_).view_facts;
             facts != nullptr && facts->writes.enabled()) {
    view_facts_of(view).writes = facts->writes;
  }
  const bool shares =
      share_memory(meta_of(view).local(), meta_of(base_).local());
  const auto* copied = copied_from(base_);
  if (copied != nullptr && shares) {
    view_facts_of(view).copied_from = meta_of(base_).view_facts->copied_from;
  } else if (copied != nullptr) {
    view_facts_of(view).copied_from = copy_of_copy(*copied, view, place.reason);
  } else if (!shares && (!in_backward() || in_view_backward())) {
    // Gradients are excluded, because they may be redistributed and no other
    // code uses them.
    view_facts_of(view).copied_from = c10::make_intrusive<CopiedFrom>(
        write_counter(base_), place.reason, placed(base_), placed(view));
  }
}

void note_copied_from(const at::Tensor& view, const at::Tensor& base) {
  const auto& facts = meta_of(base).view_facts;
  const auto& counter = facts != nullptr && facts->writes.enabled()
      ? facts->writes
      : write_counter(base);
  auto meta = meta_of(view).copy();
  meta->view_facts = c10::make_intrusive<ViewFacts>();
  meta->view_facts->copied_from = c10::make_intrusive<CopiedFrom>(
      counter, CopyReason::kRedistributed, PlacedTensor(), placed(view));
  view.unsafeGetTensorImpl()->set_backend_meta(std::move(meta));
}

} // namespace dtensor::detail
