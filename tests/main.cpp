// SPDX-License-Identifier: BSD-3-Clause
// The main function of every test program.
#include <gmock/gmock.h>

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
