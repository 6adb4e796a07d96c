// SPDX-License-Identifier: BSD-3-Clause
// Names and tensors of a state in a checkpoint.
#pragma once

#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/parallel/state/state_values_impl.h>

#include <exception>
#include <string>
#include <vector>

namespace dtensor::detail {

/// Prefixes of names in the files.
constexpr const char* kOptimizerPrefix = "optimizer.";
constexpr const char* kExtraPrefix = "extra.";

struct SavedTensor {
  std::string name;
  at::Tensor tensor;
};

struct SavedTensors {
  std::vector<SavedTensor> tensors;
  /// Names of shared tensors of the model. `tensors` contains each tensor under
  /// its first name only.
  TiedNames tied;
};

/// Returns the tensors of `state` to save, including the optimizer's current
/// state with numbers as tensors. Throws ValueError for an optimizer without
/// its model, and for a duplicate name.
SavedTensors saved_tensors(const CheckpointState& state);

/// Returns `group`, or a group of all ranks of the world if `group` is null.
GroupPtr group_or_world(const GroupPtr& group);

/// Gathers `besides` from all ranks. Throws ValueError on all ranks unless the
/// `lines`, which describe the save or load, are equal. All ranks must call
/// this function.
std::vector<std::string> check_same_on_all_ranks(
    Group& group,
    const std::vector<std::string>& lines,
    const std::string& besides,
    const char* where);

/// Throws on all ranks if any rank has an error. A rank with an error rethrows
/// it; the others throw RuntimeError with "[where] what" and the errors by
/// rank. All ranks must call this function.
void check_none_failed(
    Group& group,
    const std::exception_ptr& error,
    const std::string& what,
    const char* where);

/// Calls `fn` and returns the exception that it throws; null if none.
template <class Fn>
std::exception_ptr error_in(const Fn& fn) {
  try {
    fn();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}
/// Returns the text of an error; "" for null.
std::string text_of(const std::exception_ptr& error);

// Comparison of values that every rank holds in full: plain tensors and the
// values of `extra`. A checkpoint stores these values once, so they must be
// equal on all ranks.

/// Names of tensors, and "extra.NAME", with a digest of each value on this
/// rank.
struct ComparedValues {
  std::vector<std::string> names;
  std::vector<std::string> digests;
};

/// Returns the plain tensors and the values of `extra`. Reads all of their
/// bytes.
ComparedValues compared_values(
    const std::vector<SavedTensor>& tensors,
    const CheckpointExtra& extra);

/// Returns the names with digests that differ between ranks. `digests` contains
/// the digests of each rank. Throws ValueError on all ranks if a digest
/// differs, unless `allows`.
std::vector<std::string> names_that_differ(
    const std::vector<std::string>& names,
    const std::vector<std::vector<std::string>>& digests,
    bool allows);

} // namespace dtensor::detail
