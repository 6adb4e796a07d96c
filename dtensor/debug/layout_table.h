// SPDX-License-Identifier: BSD-3-Clause
// layout_table: the layouts of a model's parameters as a table.
//
//   std::cout << layout_table(*model);
//   // parameter  tensor     layout  mesh    here    bytes here  bytes
//   // w1.weight  f32[8, 4]  S(0)    (tp=2)  [4, 4]          64    128
//   // w2.bias    f32[4]     R       (tp=2)  [4]             16     16
//   // total                                                 80    144
#pragma once

#include <dtensor/api.h>

#include <string>

namespace torch::nn {
class Module;
}

namespace dtensor {

/// Returns a table with a line for each parameter and buffer of the model, and
/// a line of totals. "here" is the local tensor on this rank. Plain tensors
/// have no layout, and are unsharded on this rank. A tensor shared by several
/// modules is counted once. No Python counterpart.
DTENSOR_API std::string layout_table(const torch::nn::Module& model);

} // namespace dtensor
