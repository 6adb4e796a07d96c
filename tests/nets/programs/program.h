// SPDX-License-Identifier: BSD-3-Clause
// A program: tensors, modules and a list of steps, drawn from a seed, that
// means the same on plain tensors and on DTensors.
//
// A step names the variables it reads and the one it makes; its numbers are
// taken modulo what the tensors allow when it runs. So any step can be left out
// of a program and the rest still means something, which is how a failing
// program is made short.
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
  kPlain,  // a plain tensor on every rank, written through data_ptr() too
  kIds,    // a DTensor of integers
};

/// Variable i of a program is its input i.
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
  kSiblings, // three of one plan, of which a step calls one
};

struct Step {
  std::string op; // of operators.h, or one of machine.h
  int out = -1;   // the variable it makes
  std::vector<int> from;
  Numbers numbers{};
};

struct Program {
  uint64_t seed = 0;
  Sizes mesh;
  std::vector<Input> inputs;
  std::vector<ModuleKind> modules;
  std::vector<Step> steps;
  /// One line for each input, module and step.
  std::string text() const;
};

/// The program of this seed: every step of it runs on plain tensors.
Program draw_program(uint64_t seed);

/// Numbers in [-1, 1), of which no two tensors have the same.
at::Tensor values(const Sizes& sizes, uint64_t seed);

} // namespace dtensor::programs
