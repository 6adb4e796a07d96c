// SPDX-License-Identifier: BSD-3-Clause
// Boundary: what a module style wants done where a module's parameter meets
// its input. torch::nn::Module has no hooks, so the style rides on the
// parameter, and the operator that multiplies by the parameter applies it.
//
// parallel/ implements it; ops/ calls it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>
#include <dtensor/api.h>
#include <dtensor/ops/traits.h>
#include <dtensor/tensor/region_impl.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>

namespace dtensor::detail {

constexpr size_t kBoundaryKinds = 3;

/// A module's input on its way to the operator.
struct ModuleInput {
  /// A DTensor in the layout that the style computes with.
  at::Tensor value;
  /// If defined: what `value`, which has no history then, was made of, and its
  /// layout; the operator connects the two.
  at::Tensor origin;
  SpecPtr from;
};

class Boundary {
 public:
  virtual ~Boundary() = default;
  /// Whether this call needs nothing but input and output in their layouts,
  /// which the operator's region sees to (`take_input`, `exit_of`). Otherwise
  /// the next three are called, which are differentiable.
  virtual bool only_layouts() const = 0;
  /// The module's input, plain or DTensor.
  virtual ModuleInput take_input(const at::Tensor& input) const = 0;
  /// How an output of layout `made` leaves.
  virtual RegionExit exit_of(const SpecPtr& made) const = 0;

  /// The module's input, plain or DTensor, in the layout the style computes
  /// with.
  virtual at::Tensor prepare_input(const at::Tensor& input) const = 0;
  /// `input` (from prepare_input) times `weight_t`, plus `bias` if it is
  /// defined, and finished. Undefined, and nothing done, for arguments that
  /// the style leaves to the operator.
  virtual at::Tensor multiply(
      const at::Tensor& input,
      const at::Tensor& weight_t,
      const at::Tensor& bias) const = 0;
  /// The operator's output, a DTensor, as the module gives it.
  virtual at::Tensor finish_output(
      const at::Tensor& input,
      const at::Tensor& output) const = 0;

  /// Tells the observers of replicas (tensor/replica_observer_impl.h) of the
  /// module's input and of its output.
  virtual void notify_input(const at::Tensor& input) const = 0;
  virtual void notify_output(const at::Tensor& output) const = 0;

  /// The same for a product without the bias that the module may add
  /// afterwards: in the output with it.
  virtual at::Tensor finish_product(
      const at::Tensor& input,
      const at::Tensor& product) const = 0;
  /// `output += bias`, where `output` is what finish_product() made last.
  /// False, and nothing done, where finish_product() did not want the bias, and
  /// for any other tensor.
  virtual bool add_awaited_bias(
      const at::Tensor& output,
      const at::Tensor& bias) const = 0;

  /// The local bias that is added to a plain local output of this module.
  /// `output` has the local shape. Differentiable.
  virtual at::Tensor local_bias(
      const at::Tensor& bias,
      const at::Tensor& output) const = 0;
  /// Called with every leaf on which this boundary rides before an operator of
  /// that kind meets it. Modules may have been tied or cloned since it was
  /// attached: completes what rides on `parameter`.
  virtual void refresh(const at::Tensor& parameter, BoundaryKind kind)
      const = 0;
  /// Whether it rides on rows of the parameter too, which the module takes one
  /// by one.
  virtual bool rides_on_parts() const = 0;
  /// Full name of the module, from keep_module_name.
  virtual std::string_view module_name() const = 0;
  /// The module, its style and its layouts, for messages.
  virtual std::string describe() const = 0;
};
using BoundaryPtr = std::shared_ptr<const Boundary>;

/// The boundaries of one parameter: tied weights may have one of each kind.
class Boundaries {
 public:
  const BoundaryPtr& get(BoundaryKind kind) const {
    return by_kind_[static_cast<size_t>(kind)];
  }
  /// That of `kind`, or any other if there is none.
  const BoundaryPtr& get_any(BoundaryKind kind) const {
    if (const auto& exact = get(kind)) {
      return exact;
    }
    return *std::find_if(by_kind_.begin(), by_kind_.end() - 1, [](auto& b) {
      return b != nullptr;
    });
  }
  void set(BoundaryKind kind, BoundaryPtr boundary) {
    by_kind_[static_cast<size_t>(kind)] = std::move(boundary);
  }

 private:
  std::array<BoundaryPtr, kBoundaryKinds> by_kind_;
};

/// The boundary of that kind which rides on `t`, if any.
const Boundary* boundary_of(const at::Tensor& t, BoundaryKind kind);

/// Boundary::refresh for `t`, if it is a leaf on which boundaries ride.
void refresh_boundaries(const at::Tensor& t, BoundaryKind kind);

/// What rides on the result of an operator with these traits, made of the
/// DTensor `from`; null for most.
std::shared_ptr<const Boundaries> boundaries_to_carry(
    const OpTraits& traits,
    const at::Tensor& from);
inline std::shared_ptr<const Boundaries> carried_boundaries(
    const OpTraits& traits,
    const at::Tensor& from) {
  return traits.carries || traits.carries_to_parts
      ? boundaries_to_carry(traits, from)
      : nullptr;
}

/// Boundary::multiply for the arguments of an operator in that role; undefined
/// where it is not for that.
at::Tensor multiply_by_boundary(
    const Boundary& boundary,
    const BoundaryRole& role,
    c10::ArrayRef<c10::IValue> args);

/// Adds "in `module`" to an error that was thrown inside the forward of a
/// styled module, once: that of the innermost module. Errors of this library
/// that name a function of it are left alone; they say what they are about.
DTENSOR_API void name_module(c10::Error& error, const std::string& module);

/// add_(self, other, alpha) with a plain self and the bias of a styled module:
/// adds the right part of the bias. False, and nothing done, for other calls.
bool add_module_bias(torch::jit::Stack* stack);

} // namespace dtensor::detail
