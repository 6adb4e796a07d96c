// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/plan.h>

namespace dtensor {
namespace {

// (n - 1) / n of `bytes`.
double all_but_mine(int64_t n, double bytes) {
  return static_cast<double>(n - 1) * bytes / static_cast<double>(n);
}

} // namespace

double all_reduce_bytes(int64_t n, double full) {
  return 2 * all_but_mine(n, full);
}

double all_gather_bytes(int64_t n, double full) {
  return all_but_mine(n, full);
}

double reduce_scatter_bytes(int64_t n, double full) {
  return all_but_mine(n, full);
}

double all_to_all_bytes(int64_t n, double local) {
  return all_but_mine(n, local);
}

} // namespace dtensor
