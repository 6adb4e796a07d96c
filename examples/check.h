// SPDX-License-Identifier: BSD-3-Clause
// Checks of the examples. A failed check ends the program, in every build type.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK_THAT(condition)                                             \
  do {                                                                    \
    if (!(condition)) {                                                   \
      std::fprintf(                                                       \
          stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                       \
    }                                                                     \
  } while (false)
