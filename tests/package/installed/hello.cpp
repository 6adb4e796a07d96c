// SPDX-License-Identifier: BSD-3-Clause
// A whole program that uses an installed dtensor.
#include <dtensor/dtensor.h>

#include <iostream>

int main() {
  using namespace dtensor;
  const DeviceMesh mesh(c10::kCPU, {2}, {0, 1}, {"tp"});
  const auto spec = Spec::make(mesh, {Shard(0)}, {8, 6}, at::kFloat);
  std::cout << to_string(*spec) << '\n';
  return to_string(*spec) == "f32[8, 6] on (tp=2): S(0)" ? 0 : 1;
}
