// SPDX-License-Identifier: BSD-3-Clause
// OperatorObserver: receives every operator that LibTorch calls on this rank,
// through LibTorch's callbacks (at::RecordFunction). A thread has no callback
// while there is no observer.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>

namespace dtensor::detail {

class OperatorObserver {
 public:
  virtual ~OperatorObserver() = default;
  /// Bracket a call. Nested calls begin and end in between.
  virtual void on_begin(const at::RecordFunction& call) = 0;
  virtual void on_end(const at::RecordFunction& call) = 0;
};

/// Returns the inputs of a call that begins. at::RecordFunction::inputs() fails
/// in a debug build with a release LibTorch, because it checks a flag that only
/// a debug LibTorch sets.
c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& call);

/// Kinds of events to observe.
enum class ObservedEvents : uint8_t {
  kOperators, // operators, with inputs
  kResults,   // as kOperators, and outputs at the end; none if the call threw
  kRanges,    // autograd nodes, collectives, and ranges of programs
};

/// Installs an observer for this rank, on the constructing thread and the
/// threads that work for it. Observers nest, and all of them receive every
/// event.
class OperatorObserverGuard {
 public:
  OperatorObserverGuard(OperatorObserver& observer, ObservedEvents heard);
  ~OperatorObserverGuard();
  OperatorObserverGuard(const OperatorObserverGuard&) = delete;
  OperatorObserverGuard& operator=(const OperatorObserverGuard&) = delete;

 private:
  OperatorObserver* observer_;
  ObservedEvents heard_;
};

} // namespace dtensor::detail
