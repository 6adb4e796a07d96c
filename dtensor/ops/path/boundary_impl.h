// SPDX-License-Identifier: BSD-3-Clause
// Boundary: actions of a module style at the point where the module's parameter
// meets its input. torch::nn::Module has no hooks, so the style is attached to
// the parameter, and the operator that multiplies by the parameter applies it.
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
  /// DTensor in the layout that the style computes with.
  at::Tensor value;
  /// If defined, the tensor from which `value` was made, with its layout
  /// `from`. `value` then has no autograd history, and the operator connects
  /// the two.
  at::Tensor origin;
  SpecPtr from;
};

class Boundary {
 public:
  virtual ~Boundary() = default;
  /// Returns true if the call only needs input and output in their layouts,
  /// which the operator's region provides (`take_input`, `exit_of`). Otherwise
  /// the differentiable functions prepare_input(), multiply() and
  /// finish_output() are called.
  virtual bool only_layouts() const = 0;
  /// Returns the module's input, given as a plain tensor or a DTensor.
  virtual ModuleInput take_input(const at::Tensor& input) const = 0;
  /// Returns the way an output of layout `made` leaves the region.
  virtual ResultConversion exit_of(const SpecPtr& made) const = 0;

  /// Returns the module's input, given as a plain tensor or a DTensor, in the
  /// layout that the style computes with.
  virtual at::Tensor prepare_input(const at::Tensor& input) const = 0;
  /// Returns `input` (from prepare_input) times `weight_t`, plus `bias` if it
  /// is defined, as a finished output. Returns an undefined tensor, and does
  /// nothing, for arguments that the style leaves to the operator.
  virtual at::Tensor multiply(
      const at::Tensor& input,
      const at::Tensor& weight_t,
      const at::Tensor& bias) const = 0;
  /// Converts the operator's output, a DTensor, to the module's output.
  virtual at::Tensor finish_output(
      const at::Tensor& input,
      const at::Tensor& output) const = 0;

  /// Notify the observers of replicas (tensor/replica_observer_impl.h) of the
  /// module's input and output.
  virtual void notify_input(const at::Tensor& input) const = 0;
  virtual void notify_output(const at::Tensor& output) const = 0;

  /// Like finish_output(), for a product without the bias that the module may
  /// add afterwards. The bias is then added to the finished output.
  virtual at::Tensor finish_product(
      const at::Tensor& input,
      const at::Tensor& product) const = 0;
  /// Computes `output += bias`, where `output` is the latest result of
  /// finish_product(). Returns false, and does nothing, for any other tensor
  /// and if finish_product() does not expect a bias.
  virtual bool add_pending_bias(
      const at::Tensor& output,
      const at::Tensor& bias) const = 0;

  /// Returns the local bias to add to a plain local output of this module.
  /// `output` has the local shape. Differentiable.
  virtual at::Tensor local_bias(
      const at::Tensor& bias,
      const at::Tensor& output) const = 0;
  /// Completes the boundaries attached to `parameter`, since modules may have
  /// been tied or cloned after the boundary was attached. Called with every
  /// leaf that has this boundary before an operator of that kind uses it.
  virtual void refresh(const at::Tensor& parameter, BoundaryKind kind)
      const = 0;
  /// Returns true if the boundary is also attached to rows of the parameter,
  /// which the module uses one by one.
  virtual bool applies_to_rows() const = 0;
  /// Returns the full name of the module, from keep_module_name.
  virtual std::string_view module_name() const = 0;
  /// Returns the module, its style and its layouts, for messages.
  virtual std::string describe() const = 0;
};
using BoundaryPtr = std::shared_ptr<const Boundary>;

/// Boundaries of one parameter: tied weights may have one of each kind.
class Boundaries {
 public:
  const BoundaryPtr& get(BoundaryKind kind) const {
    return by_kind_[static_cast<size_t>(kind)];
  }
  /// Returns the boundary of `kind`, or any other boundary if there is none.
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

/// Returns the boundary of `kind` that is attached to `t`; null if there is
/// none.
const Boundary* boundary_of(const at::Tensor& t, BoundaryKind kind);

/// Calls Boundary::refresh for `t` if it is a leaf with boundaries.
void refresh_boundaries(const at::Tensor& t, BoundaryKind kind);

/// Returns the boundaries to attach to the result of an operator with these
/// traits on the DTensor `from`; null for most.
std::shared_ptr<const Boundaries> boundaries_to_carry(
    const OpTraits& traits,
    const at::Tensor& from);
inline std::shared_ptr<const Boundaries> carried_boundaries(
    const OpTraits& traits,
    const at::Tensor& from) {
  return traits.carries || traits.boundary_follows_rows
      ? boundaries_to_carry(traits, from)
      : nullptr;
}

/// Calls Boundary::multiply with the arguments of an operator in that role.
/// Returns an undefined tensor where it does not apply.
at::Tensor multiply_by_boundary(
    const Boundary& boundary,
    const BoundaryRole& role,
    c10::ArrayRef<c10::IValue> args);

/// Adds "in `module`" to an error thrown inside the forward of a styled module.
/// An error is extended once, by the innermost module. Errors that name a
/// function of this library are left alone, since they already describe their
/// context.
DTENSOR_API void name_module(c10::Error& error, const std::string& module);

/// Handles add_(self, other, alpha) with a plain self and the bias of a styled
/// module: adds this rank's shard of the bias. Returns false, and does nothing,
/// for other calls.
bool add_module_bias(torch::jit::Stack* stack);

} // namespace dtensor::detail
