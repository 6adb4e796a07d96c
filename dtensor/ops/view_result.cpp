// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/view_result_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/in_backward_impl.h>

namespace dtensor::detail {
namespace {

const char* what_to_write(CopyReason reason) {
  return reason == CopyReason::kRedistributed
      ? "Redistribute that tensor first, or clone() the view."
      : "Write to that tensor itself, or clone() the view.";
}

// The storage offset of `t` in elements of the dtype of `view`.
int64_t in_elements_of(const at::Tensor& view, const at::Tensor& t) {
  return t.storage_offset() * static_cast<int64_t>(t.itemsize()) /
      static_cast<int64_t>(view.itemsize());
}

// What counts the writes to the memory of `t`.
const c10::VariableVersion& write_counter(const at::Tensor& t) {
  auto& meta = meta_of(t);
  if (!t.is_inference()) {
    return t.unsafeGetTensorImpl()->version_counter();
  }
  if (!meta.writes.enabled()) {
    meta.writes = c10::VariableVersion(0);
  }
  return meta.writes;
}

} // namespace

ViewPlace Viewed::place_of(
    const at::Tensor& local,
    const Decision& decision,
    size_t index) const {
  if (!base_.defined()) {
    return {};
  }
  const auto offset = decision.shapes_from_results
      ? local.storage_offset() - in_elements_of(local, local_)
      : decision.offsets[index];
  const bool conjugated = local.is_conj() || local.is_neg();
  return {
      in_elements_of(local, base_) + offset,
      conjugated                   ? CopyReason::kConjugated
          : decision.redistributes ? CopyReason::kRedistributed
                                   : CopyReason::kCopied};
}

void Viewed::finish(const at::Tensor& view, const ViewPlace& place) const {
  if (!base_.defined()) {
    return;
  }
  set_offset(view, place.offset);
  auto& meta = meta_of(view);
  const auto& from = meta_of(base_);
  const auto& counter = write_counter(base_);
  if (base_.is_inference()) {
    meta.writes = counter;
  }
  if (from.copied_from) {
    meta.copied_from = from.copied_from;
  } else if (
      !meta.local().is_alias_of(local_) &&
      (!in_backward() || in_view_backward())) {
    // Gradients may be redistributed, and belong to nobody else.
    meta.copied_from =
        c10::make_intrusive<const CopiedFrom>(counter, place.reason);
  }
}

void refuse_write_to_copy(const std::string& name, const at::Tensor& self) {
  const auto& copied = meta_of(self).copied_from;
  DTENSOR_CHECK(
      !copied,
      name,
      "self, ",
      *spec_of(self),
      ", was taken as a view of ",
      what_was_viewed(copied->reason),
      ", which this would not write to. ",
      what_to_write(copied->reason));
}

} // namespace dtensor::detail
