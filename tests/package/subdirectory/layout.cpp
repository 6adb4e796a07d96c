// SPDX-License-Identifier: BSD-3-Clause
// Prints a placement.
#include <dtensor/layout/text.h>

#include <iostream>

int main() {
  std::cout << dtensor::Shard(0) << '\n';
}
