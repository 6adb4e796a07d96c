// SPDX-License-Identifier: BSD-3-Clause
// The library's version. CMake reads these three lines, so they are the only
// place where the version is written.
#pragma once

/// The numbers of the version.
#define DTENSOR_VERSION_MAJOR 0
#define DTENSOR_VERSION_MINOR 2
#define DTENSOR_VERSION_PATCH 0
