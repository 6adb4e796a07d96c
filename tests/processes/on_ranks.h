// SPDX-License-Identifier: BSD-3-Clause
// Tests that run as every rank of a world of processes.
#pragma once

#include <gtest/gtest.h>

#include <functional>

namespace dtensor::test {

/// Runs `fn` as this process's rank or, where several of its threads are ranks,
/// as each of them. The suite's main() has it.
void on_ranks(const std::function<void()>& fn);

} // namespace dtensor::test

#define TEST_ON_RANKS(suite, name)        \
  static void suite##name();              \
  TEST(suite, name) {                     \
    dtensor::test::on_ranks(suite##name); \
  }                                       \
  static void suite##name()
