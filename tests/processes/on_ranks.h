// SPDX-License-Identifier: BSD-3-Clause
// TEST_ON_RANKS: tests that run as every rank of a world of processes.
#pragma once

#include <gtest/gtest.h>

#include <functional>

namespace dtensor::test {

/// Runs `fn` as this process's rank, or as each of its ranks if several threads
/// are ranks. Defined by the suite's main program.
void on_ranks(const std::function<void()>& fn);

} // namespace dtensor::test

#define TEST_ON_RANKS(suite, name)        \
  static void suite##name();              \
  TEST(suite, name) {                     \
    dtensor::test::on_ranks(suite##name); \
  }                                       \
  static void suite##name()
