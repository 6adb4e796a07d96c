// SPDX-License-Identifier: BSD-3-Clause
// DTENSOR_API marks declarations that a shared build of the library exports.
#pragma once

#define DTENSOR_API __attribute__((visibility("default")))
