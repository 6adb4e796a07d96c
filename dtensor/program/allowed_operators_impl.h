// SPDX-License-Identifier: BSD-3-Clause
// Operators that a file may call. A graph or a script comes from its author,
// and the dispatcher also has operators that read and write files, replace a
// tensor's storage or skip bounds checks.
#pragma once

#include <ATen/core/function_schema.h>

#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// Returns true for an operator of the namespace aten that computes results
/// from its arguments and does nothing else. The rule refuses by default:
/// - names that begin with an underscore are allowed if they are listed,
/// - other names are allowed unless they are listed as refused,
/// - an argument of an unlisted type refuses the operator. An argument that is
///   a string is allowed if its name is listed.
bool only_computes(const c10::FunctionSchema& schema);

/// Returns true if `allowed` has the operator's name ("torchvision::nms") or
/// its namespace ("torchvision::*").
bool is_named_in(
    const std::vector<std::string>& allowed,
    const std::string& operator_name);

/// Throws ValueError for an item of `allowed` that is neither a name with its
/// namespace nor a namespace with a star.
void check_operator_names(const std::vector<std::string>& allowed);

/// Returns true for a TorchScript function that is not a dispatcher operator
/// ("prim::ListConstruct", "aten::len") and only computes.
bool script_function_only_computes(std::string_view kind);

} // namespace dtensor::detail
