// SPDX-License-Identifier: BSD-3-Clause
// OperatorObserver: hears of every operator that LibTorch calls for this rank.
// Built on LibTorch's own callbacks (at::RecordFunction), of which a thread has
// none while nobody listens.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>

namespace dtensor::detail {

class OperatorObserver {
 public:
  virtual ~OperatorObserver() = default;
  /// Between the two, what it calls begins and ends.
  virtual void on_begin(const at::RecordFunction& call) = 0;
  virtual void on_end(const at::RecordFunction& call) = 0;
};

/// The inputs of a call that begins. at::RecordFunction::inputs() is not for a
/// debug build on a LibTorch that is none: it asks for a mark that LibTorch
/// does not set.
c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& call);

/// What to hear of.
enum class Heard : uint8_t {
  kOperators, // with their inputs
  kResults, // the same, and at their end call.outputs(): none of one that threw
  kOutputs, // operators and nodes of the graph, with call.outputs() at their
            // end
  kRanges,  // nodes of the graph, collectives, and ranges of programs
};

/// Installs an observer for this rank while it lives, on the thread that made
/// it and those that work for it. Observers nest: all of them hear everything.
class OperatorObserverGuard {
 public:
  OperatorObserverGuard(OperatorObserver& observer, Heard heard);
  ~OperatorObserverGuard();
  OperatorObserverGuard(const OperatorObserverGuard&) = delete;
  OperatorObserverGuard& operator=(const OperatorObserverGuard&) = delete;

 private:
  OperatorObserver* observer_;
  Heard heard_;
};

} // namespace dtensor::detail
