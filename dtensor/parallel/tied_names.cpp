// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/tied_names_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <unordered_map>

namespace dtensor::detail {

TiedNames::TiedNames(const StateDict& tensors) {
  std::unordered_map<const void*, std::string> known;
  for (const auto& item : tensors) {
    const auto [first, is_new] =
        known.try_emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (!item.value().defined() || is_new) {
      continue;
    }
    firsts_[item.key()] = first->second;
    auto& names = by_first_[first->second];
    if (names.empty()) {
      names.push_back(first->second);
    }
    names.push_back(item.key());
  }
}

const std::vector<std::string>& TiedNames::names_of(
    const std::string& name) const {
  static const std::vector<std::string> none;
  const auto first = firsts_.find(name);
  const auto found =
      by_first_.find(first == firsts_.end() ? name : first->second);
  return found == by_first_.end() ? none : found->second;
}

bool have_same_values(const at::Tensor& a, const at::Tensor& b) {
  const auto are_equal = a.eq(b).logical_or(a.ne(a).logical_and(b.ne(b))).all();
  return are_equal.item<bool>();
}

} // namespace dtensor::detail
