// SPDX-License-Identifier: BSD-3-Clause
// PrepareModuleInput, PrepareModuleOutput, PrepareModuleInputOutput:
// redistribute inputs and outputs of any module declared with DTENSOR_MODULE.
//
//   {"blocks.*.attn", PrepareModuleInput({
//       .input_layouts = {Shard(1), std::nullopt},
//       .desired_input_layouts = {Replicate(), std::nullopt}})}
//   {"blocks.*.mlp", PrepareModuleOutput({
//       .output_layouts = Replicate(),
//       .desired_output_layouts = Shard(0)})}
//
// There is one layout per tensor argument (or result); nullopt passes the
// tensor through. A single placement is a list of one. C++ has no keyword
// arguments, so there is no counterpart of Python's input_kwarg_layouts: every
// argument has a position.
#pragma once

#include <dtensor/parallel/style.h>

#include <optional>
#include <vector>

namespace dtensor {

/// Placement per tensor; nullopt passes the tensor through.
class OptionalPlacements : public std::vector<std::optional<Placement>> {
 public:
  using std::vector<std::optional<Placement>>::vector;
  /// Makes a list of one placement.
  OptionalPlacements(Placement placement) : vector(1, placement) {}
  /// Makes an empty list, like Python's None.
  OptionalPlacements(std::nullopt_t) {}
};

/// Options for PrepareModuleInput.
struct PrepareModuleInputOptions {
  /// Layout of each plain tensor argument. A DTensor has its own.
  OptionalPlacements input_layouts = {};
  /// Layout to which each tensor argument is redistributed for forward.
  OptionalPlacements desired_input_layouts = {};
  /// Passes local tensors to the module instead of DTensors.
  bool use_local_output = false;
};

/// Redistributes the inputs of a module. Throws ValueError if the two lists
/// differ in length, if only one of them has nullopt for a tensor, or if
/// forward is called with a different number of tensors. apply() throws
/// NotImplementedError for a module without hooks.
/// Python: torch.distributed.tensor.parallel.PrepareModuleInput.
class DTENSOR_API PrepareModuleInput : public ParallelStyle {
 public:
  explicit PrepareModuleInput(PrepareModuleInputOptions options);
  void apply(const StyleTarget& target) const override;

 private:
  PrepareModuleInputOptions options_;
};

/// Options for PrepareModuleOutput.
struct PrepareModuleOutputOptions {
  /// Layout of each plain tensor that forward returns.
  OptionalPlacements output_layouts = {};
  /// Layout to which each result is redistributed for the caller.
  OptionalPlacements desired_output_layouts = {};
  /// Returns local tensors instead of DTensors.
  bool use_local_output = true;
};

/// Redistributes the outputs of a module. Throws the errors of
/// PrepareModuleInput, for the results of forward.
/// Python: torch.distributed.tensor.parallel.PrepareModuleOutput.
class DTENSOR_API PrepareModuleOutput : public ParallelStyle {
 public:
  explicit PrepareModuleOutput(PrepareModuleOutputOptions options);
  void apply(const StyleTarget& target) const override;

 private:
  PrepareModuleOutputOptions options_;
};

/// Options for PrepareModuleInputOutput: those of both styles, where
/// use_local_input is PrepareModuleInput's use_local_output.
struct PrepareModuleInputOutputOptions {
  OptionalPlacements input_layouts = {};
  OptionalPlacements desired_input_layouts = {};
  bool use_local_input = false;
  OptionalPlacements output_layouts = {};
  OptionalPlacements desired_output_layouts = {};
  bool use_local_output = true;
};

/// Combines PrepareModuleInput and PrepareModuleOutput, and throws their
/// errors.
/// Python: torch.distributed.tensor.parallel.PrepareModuleInputOutput.
class DTENSOR_API PrepareModuleInputOutput : public ParallelStyle {
 public:
  explicit PrepareModuleInputOutput(PrepareModuleInputOutputOptions options);
  void apply(const StyleTarget& target) const override;

 private:
  PrepareModuleInput input_;
  PrepareModuleOutput output_;
};

} // namespace dtensor
