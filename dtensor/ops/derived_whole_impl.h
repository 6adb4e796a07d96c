// SPDX-License-Identifier: BSD-3-Clause
// DerivedWhole: the whole of what operators made of parameters alone, such as
// `1 + weight` or `mm(b, a)`. The DTensor itself was computed from the parts.
// The same operators run on whole parameters where it meets a tensor that is no
// part of it, such as an activation.
//
// A call is repeated at most once, with the gradient mode that it had; views
// are made each time, so that they keep no memory of a unit.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <dtensor/ops/whole_source_impl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace dtensor::detail {

/// A call of an operator whose operands have sources.
class DerivedCall {
 public:
  enum class Kind : uint8_t { kFunction, kView, kInPlace };

  /// `args` of the call on parts, before it runs.
  DerivedCall(
      const c10::OperatorHandle& op,
      c10::ArrayRef<c10::IValue> args,
      Kind kind);
  ~DerivedCall();
  DerivedCall(const DerivedCall&) = delete;
  DerivedCall& operator=(const DerivedCall&) = delete;

  const c10::OperatorHandle& op() const {
    return op_;
  }
  Kind kind() const {
    return kind_;
  }
  /// Calls that lie below this one, one after the other.
  int64_t depth() const {
    return depth_;
  }
  /// Source of the first operand that has one.
  const std::shared_ptr<WholeSource>& base() const {
    return sources_[0].source;
  }
  /// Result number `result`, lists flattened, of the call on wholes.
  at::Tensor take(size_t result);
  void give_back(at::TensorList results);
  std::optional<at::ScalarType> operand_dtype() const;
  /// Operands have changed since, so that the call cannot be repeated.
  bool is_lost() const;
  /// The call whose results this one waits for: itself, or the one below a
  /// view; null once there are results, and for views of parameters.
  DerivedCall* pending();

 private:
  struct Operand {
    std::shared_ptr<WholeSource> source;
    ParameterState state; // of a source that follows a parameter
    size_t arg;
    int item; // in a list; -1 outside
  };

  std::vector<at::Tensor> run();
  void compute();
  bool operands_changed() const;

  c10::OperatorHandle op_;
  torch::jit::Stack args_;
  std::vector<Operand> sources_;
  std::vector<std::pair<at::Tensor, uint32_t>> plain_; // and their versions
  Kind kind_;
  bool grad_mode_;
  bool inference_mode_;
  int64_t depth_ = 1;
  bool is_here_ = false;
  std::vector<at::Tensor> results_;
};

/// The source of one result.
class DerivedWhole final : public WholeSource {
 public:
  /// `follows`: a view of the memory of a parameter. `base`: the source of what
  /// the result is a view of, or was written to; null for other results.
  DerivedWhole(
      std::shared_ptr<DerivedCall> call,
      size_t result,
      bool follows,
      const WholeSource* base);

  bool is_open() const override;
  at::Tensor take() override;
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
  bool stays_with(const at::Tensor&) override {
    return false;
  }
  const std::shared_ptr<DerivedCall>& call() const {
    return call_;
  }

 private:
  std::shared_ptr<DerivedCall> call_;
  size_t result_;
  bool follows_;
  at::ScalarType dtype_ = at::ScalarType::Undefined; // of what was taken
  // Writes to the result and to views of it, which share the count.
  std::shared_ptr<int64_t> writes_;
  int64_t seen_writes_ = 0;
};

/// Notes on the DTensors among the results of `call`, which ran on parts as
/// `args`, that their wholes can be had from it.
void note_derived(
    const std::shared_ptr<DerivedCall>& call,
    c10::ArrayRef<c10::IValue> args,
    c10::ArrayRef<c10::IValue> results);

/// The source is that of a view of what has one.
bool is_derived_view(const WholeSource& source);

/// Makes `t` a DTensor as any other.
void drop_source(const at::Tensor& t);

} // namespace dtensor::detail
