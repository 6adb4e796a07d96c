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
//   DTENSOR_CHECK_VALUE(n > 0, "[run_ranks] the number of ranks must be "
//       "positive: {}. Pass at least 1.", n);
//
// DTENSOR_THROW and its variants always throw.
#pragma once

#include <c10/util/Exception.h>
#include <dtensor/format_text.h>

/// Throw the error of their name with a formatted message if `cond` is false.
#define DTENSOR_CHECK(cond, ...) \
  TORCH_CHECK(cond, ::dtensor::detail::format_text(__VA_ARGS__))
#define DTENSOR_CHECK_VALUE(cond, ...) \
  TORCH_CHECK_VALUE(cond, ::dtensor::detail::format_text(__VA_ARGS__))
#define DTENSOR_CHECK_INDEX(cond, ...) \
  TORCH_CHECK_INDEX(cond, ::dtensor::detail::format_text(__VA_ARGS__))
#define DTENSOR_CHECK_TYPE(cond, ...) \
  TORCH_CHECK_TYPE(cond, ::dtensor::detail::format_text(__VA_ARGS__))
#define DTENSOR_CHECK_NOT_IMPLEMENTED(cond, ...) \
  TORCH_CHECK_NOT_IMPLEMENTED(cond, ::dtensor::detail::format_text(__VA_ARGS__))

/// Throw the error of their name with a formatted message.
#define DTENSOR_THROW(...) \
  C10_THROW_ERROR(Error, ::dtensor::detail::format_text(__VA_ARGS__))
#define DTENSOR_THROW_VALUE(...) \
  C10_THROW_ERROR(ValueError, ::dtensor::detail::format_text(__VA_ARGS__))
#define DTENSOR_THROW_INDEX(...) \
  C10_THROW_ERROR(IndexError, ::dtensor::detail::format_text(__VA_ARGS__))
#define DTENSOR_THROW_TYPE(...) \
  C10_THROW_ERROR(TypeError, ::dtensor::detail::format_text(__VA_ARGS__))
#define DTENSOR_THROW_NOT_IMPLEMENTED(...) \
  C10_THROW_ERROR(                         \
      NotImplementedError, ::dtensor::detail::format_text(__VA_ARGS__))
