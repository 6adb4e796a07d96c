// SPDX-License-Identifier: BSD-3-Clause
// A program: tensors, modules and a list of steps, drawn from a seed. It has
// the same meaning on plain tensors and on DTensors.
//
// A step names the variables that it reads and the variable that it makes. Its
// numbers are taken modulo the limits of the tensors when the step runs.
// Therefore any step can be removed from a program, and the rest is still
// valid. Failing programs are shrunk in this way.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/placement.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace dtensor::programs {

using Sizes = std::vector<int64_t>;
using Numbers = std::array<int64_t, 4>;

enum class InputKind : uint8_t {
  kLeaf,   // a DTensor that requires grad
  kValue,  // a DTensor
  kBuffer, // a DTensor over local memory that is written through data_ptr()
  kPlain,  // a plain tensor on every rank, also written through data_ptr()
  kIds,    // a DTensor of integers
};

/// Input i of a program, which is its variable i.
struct Input {
  InputKind kind = InputKind::kValue;
  Sizes sizes;
  Placements layout;
};

enum class ModuleKind : uint8_t {
  kColwise,
  kRowwise,
  kNorm,
  kEmbedding,
  kMlp,
  kSiblings, // three layers of one plan; a step calls one of them
};

struct Step {
  std::string op; // operator of operators.h, or step of machine.h
  int out = -1;   // variable that the step makes
  std::vector<int> from;
  Numbers numbers{};
};

struct Program {
  uint64_t seed = 0;
  Sizes mesh;
  std::vector<Input> inputs;
  std::vector<ModuleKind> modules;
  std::vector<Step> steps;
  /// Returns one line for each input, module and step.
  std::string text() const;
};

/// Draws the program of this seed. All its steps run on plain tensors.
Program draw_program(uint64_t seed);

/// Returns numbers in [-1, 1) that differ between tensors.
at::Tensor values(const Sizes& sizes, uint64_t seed);

} // namespace dtensor::programs
