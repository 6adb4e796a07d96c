// SPDX-License-Identifier: BSD-3-Clause
// What a state is called in a checkpoint.
#pragma once

#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/parallel/tied_names_impl.h>

#include <exception>
#include <string>
#include <vector>

namespace dtensor::detail {

/// Beginnings of names in the files.
constexpr const char* kOptimizerPrefix = "optimizer.";
constexpr const char* kExtraPrefix = "extra.";

struct SavedTensor {
  std::string name;
  at::Tensor tensor;
};

struct SavedTensors {
  std::vector<SavedTensor> tensors;
  /// Of the model's. Each tensor is in the list under its first name alone.
  TiedNames tied;
};

/// The tensors that a checkpoint has of `state`: of the optimizer those that it
/// keeps now, with numbers as tensors. Throws ValueError for an optimizer
/// without its model, and two tensors of one name.
SavedTensors saved_tensors(const CheckpointState& state, const char* where);

/// All ranks of the world, or those that were named.
GroupPtr group_or_world(const GroupPtr& group);

/// Throws ValueError on all ranks, which all call it, unless all say the same
/// lines: what and how they save or load. Returns what each says besides.
std::vector<std::string> check_all_alike(
    Group& group,
    const std::vector<std::string>& lines,
    const std::string& besides,
    const char* where);

/// Throws on all ranks, which all call it, if any has an error: that one again,
/// and on the others RuntimeError, "[where] what" and the errors by rank.
void check_none_failed(
    Group& group,
    const std::exception_ptr& error,
    const std::string& what,
    const char* where);

/// Calls `fn`; what it throws, for the above.
template <class Fn>
std::exception_ptr error_in(const Fn& fn) {
  try {
    fn();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}
/// Its text; empty for none.
std::string text_of(const std::exception_ptr& error);

} // namespace dtensor::detail
