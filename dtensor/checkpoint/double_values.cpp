// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/double_values_impl.h>

#include <dtensor/checkpoint/manifest_impl.h>
#include <dtensor/error.h>
#include <dtensor/parallel/state/state_values_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/tensor_replacement_impl.h>

#include <ATen/ops/empty_like.h>
#include <c10/util/StringUtil.h>

namespace dtensor::detail {

void DuplicateWeights::compare(PartReader& reader) {
  for (const auto& pair : pairs_) {
    const auto read = [&](const std::string& name) {
      const auto value = empty_like_target(pair.target);
      reader.read(name, value);
      return is_dtensor(value) ? local_of(value) : value;
    };
    reader.check(pair.again, pair.target);
    const auto first = read(pair.first);
    if (!have_same_values(first, read(pair.again))) {
      differing_.push_back(detail::format_text(
          "{} and {} have different values", pair.first, pair.again));
    }
  }
}

void DuplicateWeights::check() const {
  DTENSOR_CHECK_VALUE(
      differing_.empty(),
      "[{}] {}, but are one tensor in the model. Load the one to keep with "
      "load_weights(), leaving the other out of `names`.",
      kLoadCheckpoint,
      c10::Join("; ", differing_));
}

at::Tensor empty_like_target(const at::Tensor& target) {
  auto like = at::empty_like(target.detach());
  if (target.is_meta()) {
    allocate(like);
  }
  return like;
}

} // namespace dtensor::detail
