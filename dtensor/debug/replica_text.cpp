// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/compare_replicas_impl.h>

#include <dtensor/format_text.h>

namespace dtensor::detail {
namespace {

std::string in_module(std::string_view name) {
  return name.empty() ? "" : detail::format_text(" in module \"{}\"", name);
}

std::string of_module(std::string_view name) {
  return name.empty() ? " of the root module"
                      : detail::format_text(" of module \"{}\"", name);
}

} // namespace

std::string title_of(ReplicaRole role, std::string_view name) {
  switch (role) {
    case ReplicaRole::kInput:
      return "the input" + of_module(name);
    case ReplicaRole::kOutput:
      return "the output" + of_module(name);
    case ReplicaRole::kLocal:
      return "the argument of from_local" + in_module(name);
    case ReplicaRole::kGradient:
      return name.empty() ? "the gradient of a local tensor"
                          : "the gradient of the output" + of_module(name);
    case ReplicaRole::kNorm:
      return "the norm of the gradients";
    case ReplicaRole::kDraw:
      return "the stream of random numbers" + in_module(name);
    case ReplicaRole::kParameter:
      return detail::format_text("the parameter \"{}\"", name);
    case ReplicaRole::kParameterGradient:
      return detail::format_text("the gradient of the parameter \"{}\"", name);
    case ReplicaRole::kLoss:
      return "the loss";
    case ReplicaRole::kRandomState:
      return name.empty()
          ? "the random state"
          : detail::format_text("the random state at module \"{}\"", name);
    default:
      return detail::format_text("\"{}\"", name);
  }
}

const char* advice_for(ReplicaRole role) {
  switch (role) {
    case ReplicaRole::kInput:
      return "Pass the same input on these ranks, or set the style's "
             "input_layouts to its actual layout.";
    case ReplicaRole::kOutput:
      return "Look for what the module computes differently there: random "
             "numbers, or code that depends on the rank.";
    case ReplicaRole::kLocal:
      return "Pass the same tensor on these ranks, or pass its actual "
             "placements.";
    case ReplicaRole::kGradient:
      return "Use the output in the same way on each of these ranks, or change "
             "its layout (output_layouts, or grad_placements of to_local).";
    case ReplicaRole::kNorm:
      return "Look for a gradient that one rank has changed or does not have.";
    case ReplicaRole::kDraw:
    case ReplicaRole::kRandomState:
      return "Seed all ranks alike with dtensor::manual_seed(), and draw the "
             "same random numbers on all of them.";
    case ReplicaRole::kParameter:
      return "Seed all ranks alike before the model is made, load the same "
             "weights on all of them, and write to the parameter on all or on "
             "none.";
    case ReplicaRole::kParameterGradient:
      return "Run the same backward passes on these ranks, and write to the "
             "gradient on all or on none.";
    case ReplicaRole::kLoss:
      return "Compute the loss from the full output: output_layouts = "
             "Replicate(), or loss_parallel(). Set losses = false if each of "
             "these ranks has its own loss on purpose.";
    default:
      return "Compute the tensor in the same way on these ranks.";
  }
}

} // namespace dtensor::detail
