// SPDX-License-Identifier: BSD-3-Clause
// Macros that report errors. Every message has one form,
//
//   [where] what is wrong: the values. What to do.
//
// The exception type gives the kind of error: DTENSOR_CHECK_VALUE for a bad
// argument, _INDEX for an argument out of range, _TYPE for an argument of the
// wrong type, _NOT_IMPLEMENTED for an operator without a rule, DTENSOR_CHECK
// for a wrong state at run time. Errors that a caller cannot cause are a
// TORCH_INTERNAL_ASSERT.
//
//   DTENSOR_CHECK_VALUE(n > 0, "run_ranks", "the number of ranks must be "
//       "positive: ", n, ". Pass at least 1.");
#pragma once

#include <c10/util/Exception.h>

#define DTENSOR_CHECK(cond, where, ...) \
  TORCH_CHECK(cond, "[", where, "] ", __VA_ARGS__)
#define DTENSOR_CHECK_VALUE(cond, where, ...) \
  TORCH_CHECK_VALUE(cond, "[", where, "] ", __VA_ARGS__)
#define DTENSOR_CHECK_INDEX(cond, where, ...) \
  TORCH_CHECK_INDEX(cond, "[", where, "] ", __VA_ARGS__)
#define DTENSOR_CHECK_TYPE(cond, where, ...) \
  TORCH_CHECK_TYPE(cond, "[", where, "] ", __VA_ARGS__)
#define DTENSOR_CHECK_NOT_IMPLEMENTED(cond, where, ...) \
  TORCH_CHECK_NOT_IMPLEMENTED(cond, "[", where, "] ", __VA_ARGS__)
