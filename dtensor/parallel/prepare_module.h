// SPDX-License-Identifier: BSD-3-Clause
// PrepareModuleInput, PrepareModuleOutput, PrepareModuleInputOutput: layouts of
// what goes into and comes out of any module declared with DTENSOR_MODULE.
//
//   {"blocks.*.attn", PrepareModuleInput({
//       .input_layouts = {Shard(1), std::nullopt},
//       .desired_input_layouts = {Replicate(), std::nullopt}})}
//   {"blocks.*.mlp", PrepareModuleOutput({
//       .output_layouts = Replicate(),
//       .desired_output_layouts = Shard(0)})}
//
// Layouts are one per tensor argument (or result); nullopt passes it through.
// A single placement is the list of that placement.
// C++ has no keyword arguments, so Python's input_kwarg_layouts has no
// counterpart: all arguments have a position.
#pragma once

#include <dtensor/parallel/style.h>

#include <optional>
#include <vector>

namespace dtensor {

/// A placement for each tensor; nullopt passes that tensor through.
class OptionalPlacements : public std::vector<std::optional<Placement>> {
 public:
  using std::vector<std::optional<Placement>>::vector;
  /// A list of one placement.
  OptionalPlacements(Placement placement) : vector(1, placement) {}
  /// An empty list, as Python's None.
  OptionalPlacements(std::nullopt_t) {}
};

/// Options of PrepareModuleInput.
struct PrepareModuleInputOptions {
  /// Layout of each plain tensor argument, and the layout in which forward gets
  /// it. (A DTensor knows its own.)
  OptionalPlacements input_layouts = {};
  OptionalPlacements desired_input_layouts = {};
  /// Give the module local parts instead of DTensors.
  bool use_local_output = false;
};

/// Throws ValueError if the two lists differ in length, or forward is called
/// with another number of tensors.
/// Python: torch.distributed.tensor.parallel.PrepareModuleInput.
class DTENSOR_API PrepareModuleInput : public ParallelStyle {
 public:
  explicit PrepareModuleInput(PrepareModuleInputOptions options);
  void apply(const StyleTarget& target) const override;

 private:
  PrepareModuleInputOptions options_;
};

/// Options of PrepareModuleOutput.
struct PrepareModuleOutputOptions {
  /// Layout of each plain tensor that forward returns, and the layout in which
  /// the caller gets it.
  OptionalPlacements output_layouts = {};
  OptionalPlacements desired_output_layouts = {};
  /// Return local parts instead of DTensors.
  bool use_local_output = true;
};

/// Python: torch.distributed.tensor.parallel.PrepareModuleOutput.
class DTENSOR_API PrepareModuleOutput : public ParallelStyle {
 public:
  explicit PrepareModuleOutput(PrepareModuleOutputOptions options);
  void apply(const StyleTarget& target) const override;

 private:
  PrepareModuleOutputOptions options_;
};

/// Options of PrepareModuleInputOutput: those of both, where use_local_input is
/// PrepareModuleInput's use_local_output.
struct PrepareModuleInputOutputOptions {
  OptionalPlacements input_layouts = {};
  OptionalPlacements desired_input_layouts = {};
  bool use_local_input = false;
  OptionalPlacements output_layouts = {};
  OptionalPlacements desired_output_layouts = {};
  bool use_local_output = true;
};

/// Both of the above.
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
