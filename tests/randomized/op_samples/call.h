// SPDX-License-Identifier: BSD-3-Clause
// One call of an operator: a sample, or its in-place or out= form.
#pragma once

#include "sample_file.h"
#include "tests/randomized/harness/operators.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace dtensor::randomized {

struct Call {
  c10::OperatorHandle op;
  torch::jit::Stack arguments; // for out=: arguments of the functional form
  bool is_out_form = false;
  size_t number = 0; // index among this operator's calls
  /// True if gradients are those of a weighted sum of the results, so that the
  /// library chooses the layouts of the results' gradients. Otherwise they have
  /// the layouts of the results.
  bool has_loss = false;

  std::string name() const; // "aten::add.out"
};

/// Returns the values with each tensor replaced by map(tensor, index).
torch::jit::Stack with_tensors(
    c10::ArrayRef<c10::IValue> values,
    const std::function<at::Tensor(const at::Tensor&, size_t)>& map);

/// Returns the samples and their derived forms, by operator.
std::map<std::string, std::vector<Call>> calls_of(
    const std::vector<Sample>& samples);

/// For an out= form, appends the outs that the plain operator returns to the
/// arguments. Other calls stay unchanged. Throws the plain operator's error.
void add_outs(Call& call);

/// Extent of the comparison of an operator.
enum class Compared : uint8_t {
  kAll,
  kShapes,  // values are random or uninitialized
  kNothing, // not meaningful on a DTensor
};

Compared compared_of(const c10::OperatorHandle& op);

/// True if the operator draws random numbers. Without a rule, such an operator
/// throws in every layout.
bool is_random(const c10::OperatorHandle& op);

} // namespace dtensor::randomized
