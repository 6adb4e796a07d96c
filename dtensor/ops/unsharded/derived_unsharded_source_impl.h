// SPDX-License-Identifier: BSD-3-Clause
// DerivedUnshardedSource: provides the unsharded result of operators on
// parameters alone, such as `1 + weight` or `mm(b, a)`. The DTensor itself was
// computed from the local shards. The same operators are repeated on unsharded
// parameters when the result meets a tensor outside the parameter's mesh, such
// as an activation. UnshardedOperands: the unsharded operands of such a call.
//
// A call is repeated at most once, in its original gradient mode. Views are
// made each time, so that they keep no memory of a unit.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <dtensor/ops/unsharded/unsharded_source_impl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace dtensor::detail {

/// Unsharded operands of one call; returned to their sources when the call
/// ends.
class UnshardedOperands {
 public:
  UnshardedOperands() = default;
  UnshardedOperands(const UnshardedOperands&) = delete;
  UnshardedOperands& operator=(const UnshardedOperands&) = delete;
  ~UnshardedOperands();

  at::Tensor take_unsharded(const std::shared_ptr<UnshardedSource>& source);
  void give_back(at::TensorList results);
  /// Returns the dtype of the other operands, if a source requires one.
  std::optional<at::ScalarType> operand_dtype() const;

 private:
  std::vector<std::shared_ptr<UnshardedSource>> taken_;
};

/// Calls the operator with the unsharded values of operands that have sources.
/// If a source requires a dtype, casts other floating-point operands that the
/// operator reads to this dtype.
void call_with_unsharded(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack);

/// A recorded call of an operator whose operands have sources.
class RecordedCall {
 public:
  enum class Kind : uint8_t { kFunction, kView, kInPlace };

  /// Records a call with the sharded `args`, before it runs.
  RecordedCall(
      const c10::OperatorHandle& op,
      c10::ArrayRef<c10::IValue> args,
      Kind kind);
  ~RecordedCall();
  RecordedCall(const RecordedCall&) = delete;
  RecordedCall& operator=(const RecordedCall&) = delete;

  const c10::OperatorHandle& op() const {
    return op_;
  }
  Kind kind() const {
    return kind_;
  }
  /// Returns the length of the longest chain of calls that ends with this call.
  int64_t depth() const {
    return depth_;
  }
  /// Returns the source of the first operand that has a source.
  const std::shared_ptr<UnshardedSource>& base() const {
    return sources_[0].source;
  }
  /// Returns result number `result` (lists flattened) of the call on unsharded
  /// operands.
  at::Tensor take_unsharded(size_t result);
  void give_back(at::TensorList results);
  std::optional<at::ScalarType> operand_dtype() const;
  /// Returns true if operands have changed since the call, so that the call
  /// cannot be repeated.
  bool is_lost() const;
  /// Returns the call that must run before the results of this call exist: this
  /// call, or the call whose result it views. Null if there are results, and
  /// for views of parameters.
  RecordedCall* pending();

 private:
  struct Operand {
    std::shared_ptr<UnshardedSource> source;
    ParameterState state; // for a source that follows a parameter
    size_t arg;
    int item; // -1 outside lists
  };

  std::vector<at::Tensor> run();
  void compute();
  bool operands_changed() const;

  c10::OperatorHandle op_;
  torch::jit::Stack args_;
  std::vector<Operand> sources_;
  std::vector<std::pair<at::Tensor, uint32_t>> plain_; // with their versions
  Kind kind_;
  bool grad_mode_;
  bool inference_mode_;
  int64_t depth_ = 1;
  bool is_here_ = false;
  std::vector<at::Tensor> results_;
};

/// Source of one result of a RecordedCall.
class DerivedUnshardedSource final : public UnshardedSource {
 public:
  /// `follows`: the result is a view of the memory of a parameter. `base`:
  /// source of the viewed or written tensor, if the result is a view or was
  /// written to it; null for other results.
  DerivedUnshardedSource(
      std::shared_ptr<RecordedCall> call,
      size_t result,
      bool follows,
      const UnshardedSource* base);

  bool is_open() const override;
  at::Tensor take_unsharded() override;
  void give_back(at::TensorList results) override {
    call_->give_back(results);
  }
  std::optional<at::ScalarType> operand_dtype() const override;
  ParameterState state() const override;
  bool follows_parameter() const override {
    return follows_;
  }
  bool is_lost() const override;
  void note_write() override;
  bool keeps_source_for(const at::Tensor&) override {
    return false;
  }
  const std::shared_ptr<RecordedCall>& call() const {
    return call_;
  }

 private:
  std::shared_ptr<RecordedCall> call_;
  size_t result_;
  bool follows_;
  at::ScalarType dtype_ =
      at::ScalarType::Undefined; // of the latest take_unsharded()
  // Number of writes to the result and its views, which share the counter.
  std::shared_ptr<int64_t> writes_;
  int64_t seen_writes_ = 0;
};

/// Attaches sources to the DTensors among the results of `call`, which ran on
/// the sharded `args`. The unsharded values of these results come from
/// repeating the call.
void note_derived(
    const std::shared_ptr<RecordedCall>& call,
    c10::ArrayRef<c10::IValue> args,
    c10::ArrayRef<c10::IValue> results);

/// Returns true if the source belongs to a view of a tensor with a source.
bool is_derived_view(const UnshardedSource& source);

/// Removes the source of `t`, which becomes an ordinary DTensor.
void drop_source(const at::Tensor& t);

} // namespace dtensor::detail
