// SPDX-License-Identifier: BSD-3-Clause
// How dtensor reports bad input. Every message has one form,
//
//   [where] what is wrong: the values. What to do.
//
// and the type says whose fault it is: DTENSOR_CHECK_VALUE for a bad argument,
// _INDEX for one out of range, _TYPE for the wrong kind, _NOT_IMPLEMENTED for
// an operator without a rule, DTENSOR_CHECK for a wrong state at run time.
// What the caller cannot cause is a TORCH_INTERNAL_ASSERT.
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
