// SPDX-License-Identifier: BSD-3-Clause
// Operators that a file may call. The author of a graph or a script chooses its
// operators. The dispatcher also has operators that read and write files,
// replace a tensor's storage or skip bounds checks. Code that reads a program
// must therefore check each operator that the file names:
//
//   if (!only_computes(op.schema())) { ... refuse the file ... }
#pragma once

#include <ATen/core/function_schema.h>
#include <dtensor/api.h>

namespace dtensor {

/// Returns true for an operator of the namespace aten that computes results
/// from its arguments and does nothing else. Some of these operators read
/// foreign memory if arguments do not fit; load_program() checks their
/// arguments before each call. The rule refuses by default:
/// - operators of gradients ("_backward") and of sparse tensors are refused,
/// - names that begin with an underscore are allowed if they are listed,
/// - other names are allowed unless they are listed as refused,
/// - an argument of an unlisted type refuses the operator. An argument that is
///   a string is allowed if its name is listed.
DTENSOR_API bool only_computes(const c10::FunctionSchema& schema);

} // namespace dtensor
