// SPDX-License-Identifier: BSD-3-Clause
// Symbols of the shared libraries. A symbol without a mark is hidden, unless
// the build sets DTENSOR_EXPORT_INTERNALS for tests of internal functions.
#pragma once

// Marks a symbol that programs may use.
#define DTENSOR_API __attribute__((visibility("default")))

// Marks a symbol for the project's other libraries: dtensor::dtensor and
// dtensor::testing link these symbols of dtensor::core. Every release may
// change them.
#define DTENSOR_INTERNAL_API __attribute__((visibility("default")))
