// SPDX-License-Identifier: BSD-3-Clause
// Templates that flatten the arguments or results of a function to a list of
// leaves. local_map() (tensor/local_map.h) uses them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace dtensor::detail {

/// An argument or result: a tensor or another value.
struct MapLeaf {
  at::Tensor tensor;
  bool is_tensor = true;
};
using MapLeaves = std::vector<MapLeaf>;

template <class T>
inline constexpr bool is_tensor_type = std::is_base_of_v<at::Tensor, T>;

template <class T>
struct IsTensorList : std::false_type {};
template <class T, class A>
struct IsTensorList<std::vector<T, A>> : std::bool_constant<is_tensor_type<T>> {
};
template <class T>
struct IsTensorList<c10::ArrayRef<T>> : std::bool_constant<is_tensor_type<T>> {
};

template <class T>
struct IsOptionalTensor : std::false_type {};
template <class T>
struct IsOptionalTensor<std::optional<T>>
    : std::bool_constant<is_tensor_type<T>> {};

template <class T>
struct IsTuple : std::false_type {};
template <class... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};
template <class A, class B>
struct IsTuple<std::pair<A, B>> : std::true_type {};

/// Appends the leaves of `value`: its tensors, or one leaf for another value.
template <class T>
void add_leaves(MapLeaves& leaves, const T& value) {
  if constexpr (is_tensor_type<T>) {
    leaves.push_back({value});
  } else if constexpr (IsTensorList<T>::value) {
    for (const at::Tensor& item : value) {
      leaves.push_back({item});
    }
  } else if constexpr (IsOptionalTensor<T>::value) {
    leaves.push_back(value ? MapLeaf{*value} : MapLeaf{{}, false});
  } else if constexpr (IsTuple<T>::value) {
    std::apply(
        [&](const auto&... items) { (add_leaves(leaves, items), ...); }, value);
  } else {
    leaves.push_back({{}, false});
  }
}

/// Returns `value` with its tensors replaced by the next leaves. Other values
/// are passed on unchanged.
template <class T>
decltype(auto) with_leaves(const MapLeaf*& next, T&& value) {
  using Value = std::decay_t<T>;
  if constexpr (is_tensor_type<Value>) {
    return at::Tensor((next++)->tensor);
  } else if constexpr (IsTensorList<Value>::value) {
    std::vector<at::Tensor> list;
    for (size_t i = 0; i < value.size(); ++i) {
      list.push_back((next++)->tensor);
    }
    return list;
  } else if constexpr (IsOptionalTensor<Value>::value) {
    const MapLeaf& leaf = *next++;
    return leaf.is_tensor ? std::optional<at::Tensor>(leaf.tensor)
                          : std::nullopt;
  } else if constexpr (IsTuple<Value>::value) {
    return std::apply(
        [&](auto&&... items) {
          using Items = std::tuple<std::decay_t<decltype(with_leaves(
              next, std::forward<decltype(items)>(items)))>...>;
          return Items{
              with_leaves(next, std::forward<decltype(items)>(items))...};
        },
        std::forward<T>(value));
  } else {
    ++next;
    return std::forward<T>(value);
  }
}

} // namespace dtensor::detail
