// SPDX-License-Identifier: BSD-3-Clause
// Operations of an unboxed kernel on its arguments and results.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/IListRef_inl.h>
#include <dtensor/ops/strategy.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace dtensor::detail {

inline const at::Tensor& local_arg(const at::Tensor& t) {
  return is_dtensor(t) ? meta_of(t).local() : t;
}
inline at::Tensor& local_arg(at::Tensor& t) {
  return is_dtensor(t) ? meta_of(t).local() : t;
}
inline std::optional<at::Tensor> local_arg(const std::optional<at::Tensor>& t) {
  return t ? std::optional(local_arg(*t)) : std::nullopt;
}
inline std::vector<at::Tensor> local_arg(const at::ITensorListRef& list) {
  std::vector<at::Tensor> locals;
  locals.reserve(list.size());
  for (const at::Tensor& t : list) {
    locals.push_back(local_arg(t));
  }
  return locals;
}
template <class T>
const T& local_arg(const T& value) {
  return value;
}

inline at::Tensor wrap_fast(at::Tensor local, const SpecPtr& spec) {
  return local.defined() ? wrap(std::move(local), spec) : local;
}

template <class... Results, size_t... i>
std::tuple<Results...> wrap_fast(
    std::tuple<Results...> locals,
    const Decision& decision,
    std::index_sequence<i...>) {
  return {wrap_fast(std::move(std::get<i>(locals)), decision.outputs[i])...};
}

inline bool requires_grad(const at::Tensor& t) {
  return t.requires_grad();
}
inline bool requires_grad(const std::optional<at::Tensor>& t) {
  return t && t->requires_grad();
}
inline bool requires_grad(const at::ITensorListRef& list) {
  return std::any_of(list.begin(), list.end(), [](const at::Tensor& t) {
    return t.requires_grad();
  });
}
template <class T>
bool requires_grad(const T&) {
  return false;
}

} // namespace dtensor::detail
