// SPDX-License-Identifier: BSD-3-Clause
// The nesting of a pickle, which LibTorch's reader does not bound: lists within
// lists are freed by recursion, and a list that holds itself is never freed.
#pragma once

#include <string>
#include <string_view>

namespace dtensor::detail {

/// Lists, tuples and dictionaries within one another that a pickle may have.
constexpr size_t kMaxPickleDepth = 100;
/// Lists, tuples, dictionaries and tensors that a pickle may have.
constexpr size_t kMaxPickledObjects = 1000000;

/// Returns why a pickle is refused, or an empty text: it nests deeper than
/// kMaxPickleDepth, holds itself, or is no pickle as torch.save() writes it.
/// Takes memory and time proportional to the pickle.
std::string pickle_problem(std::string_view pickle);

} // namespace dtensor::detail
