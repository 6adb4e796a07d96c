// SPDX-License-Identifier: BSD-3-Clause
// The library's version. CMake reads the three lines below; the version is
// written nowhere else.
#pragma once

/// The numbers of the version.
#define DTENSOR_VERSION_MAJOR 0
#define DTENSOR_VERSION_MINOR 2
#define DTENSOR_VERSION_PATCH 0
