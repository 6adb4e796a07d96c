// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/copied_view_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/meta_impl.h>

namespace dtensor::detail {

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
