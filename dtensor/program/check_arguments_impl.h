// SPDX-License-Identifier: BSD-3-Clause
// Argument checks that LibTorch's operators omit. torch.export writes these
// operators after other operators that check the arguments. A file could
// therefore call an operator with arguments on which it reads foreign memory or
// crashes.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

namespace dtensor::detail {

/// Throws ValueError if the operator must not be called with these arguments.
using ArgumentCheck =
    void (*)(const c10::FunctionSchema&, c10::ArrayRef<c10::IValue> args);

/// Returns the check for an operator named like "aten::div", or null if
/// LibTorch checks all arguments.
ArgumentCheck argument_check(const c10::FunctionSchema& schema);

} // namespace dtensor::detail
