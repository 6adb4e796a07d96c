// SPDX-License-Identifier: BSD-3-Clause
// Boundary: actions of a module style at the point where the module's parameter
// meets its input. torch::nn::Module has no hooks, so the style is attached to
// the parameter, and the operator that multiplies by the parameter applies it.
// A call of a styled Linear passes these files:
//
//   ops/path/with_boundary_impl.h finds the boundary of the weight
//   ops/boundary/converter.cpp    converts the input
//   ops/path/region.cpp           calls the operator on local tensors
//   tensor/region.cpp             converts the result, and records both
//   ops/boundary/linear_bias.cpp  adds a bias that the operator did not add
//
// parallel/plan/plan_changes.cpp attaches boundaries.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/spec.h>
#include <dtensor/ops/boundary/converter_impl.h>
#include <dtensor/ops/boundary/products_impl.h>
#include <dtensor/ops/traits.h>
#include <dtensor/tensor/region_impl.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace torch::nn {
class Module;
}

namespace dtensor::detail {

struct BoundaryLayouts {
  InputLayouts input;
  /// Output layout. nullopt: the layout that the operator produces.
  std::optional<Placement> output;
  bool use_local_output = true;
  /// See RowwiseOptions.
  int64_t overlap_chunks = 1;
  /// See BoundaryOptions. Compared by identity. Null: none.
  std::shared_ptr<
      const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>>
      output_fn = nullptr;
  /// True if the boundary also applies to rows of the parameter, which the
  /// module uses one at a time.
  bool applies_to_rows = false;
  /// Set for a Linear whose output has no layout. Each rank then computes the
  /// units that it needs.
  SharedUnits shared = {};
  friend bool operator==(const BoundaryLayouts&, const BoundaryLayouts&) =
      default;
};

class Boundary final {
 public:
  /// `description` is the module, its style and its layouts, for messages.
  Boundary(
      const std::string& module_name,
      const torch::nn::Module* module,
      std::string description,
      BoundaryLayouts layouts,
      Converter input);

  /// Returns true if the call only needs input and output in their layouts,
  /// which the operator's region provides (Converter::convert_for_region,
  /// exit_of). Otherwise the differentiable functions Converter::convert,
  /// multiply() and finish_output() are called.
  bool only_layouts() const {
    return layouts_.overlap_chunks == 1 && layouts_.output_fn == nullptr &&
        layouts_.shared.users == 0 && where().mesh.contains_this_rank();
  }
  /// Returns the converter of the module's input.
  const Converter& input() const {
    return input_;
  }
  /// Returns the conversion of an output of layout `made` that leaves the
  /// region.
  ResultConversion exit_of(const SpecPtr& made) const;

  /// Returns `input` (converted) times `weight_t`, plus `bias` if it is
  /// defined, as a finished output. Returns an undefined tensor, and does
  /// nothing, for arguments that the style leaves to the operator.
  at::Tensor multiply(
      const at::Tensor& input,
      const at::Tensor& weight_t,
      const at::Tensor& bias) const;
  /// Converts the operator's output, a DTensor, to the module's output.
  at::Tensor finish_output(const at::Tensor& input, const at::Tensor& output)
      const;

  /// Like finish_output(), for a product without the bias that the module may
  /// add afterwards. The bias is then added to the finished output.
  at::Tensor finish_product(const at::Tensor& input, const at::Tensor& product)
      const;
  /// Computes `output += alpha * bias`, where `bias` belongs to this module.
  /// Returns false, and does nothing, if the operator on DTensors computes this
  /// sum.
  bool add_bias(
      at::Tensor& output,
      const at::Tensor& bias,
      const at::Scalar& alpha) const;
  /// Expects the module to add `bias` after its product. Does nothing without
  /// output_fn.
  void expect_bias(const at::Tensor& bias) const;

  /// Notifies the observers of replicas (tensor/replica_observer_impl.h).
  void notify_output(const at::Tensor& output) const;

  /// Completes the boundaries attached to `parameter`, since modules may have
  /// been tied or cloned after the boundary was attached. Called with every
  /// leaf that has this boundary, before an operator of `kind` uses the leaf.
  void refresh(const at::Tensor& parameter, BoundaryKind kind) const;

  /// Returns the full name of the module, from keep_module_name.
  std::string_view module_name() const {
    return module_name_;
  }
  const std::string& description() const {
    return description_;
  }
  const torch::nn::Module* module() const {
    return module_;
  }
  const BoundaryLayouts& layouts() const {
    return layouts_;
  }
  const StyleMesh& where() const {
    return input_.where();
  }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;
  // Number of owners of a parameter when its ties were last checked.
  struct Seen {
    const void* parameter = nullptr;
    size_t holders = 0;
    friend bool operator==(const Seen&, const Seen&) = default;
  };
  struct Exit {
    SpecPtr made;
    SpecPtr to;
  };
  // Layouts of a bias that is added to a plain local output.
  struct BiasLayouts {
    SpecPtr given;
    int64_t output_dim = 0;
    SpecPtr added;
    SpecPtr gradient; // of the added bias
  };

  at::Tensor local_bias(const at::Tensor& bias, const at::Tensor& output) const;
  BiasLayouts layouts_of_bias(const SpecPtr& given, int64_t output_dim) const;
  bool add_pending_bias(const at::Tensor& output, const at::Tensor& bias) const;

  std::string_view module_name_;
  const torch::nn::Module* module_; // compared, never dereferenced
  std::string description_;
  BoundaryLayouts layouts_;
  Converter input_;
  mutable std::array<Seen, 2> seen_ = {}; // of weight and bias
  // The bias of the module's last call. Null: no bias is expected.
  mutable std::optional<WeakTensor> expected_bias_;
  // Caches of the last call.
  mutable Exit exit_;
  mutable BiasLayouts bias_;
};
using BoundaryPtr = std::shared_ptr<const Boundary>;

/// Redistributes `y` to layout `output`, unless nullopt. With `use_local`,
/// returns the local tensor of the result.
at::Tensor to_output_layout(
    const at::Tensor& y,
    const StyleMesh& where,
    const std::optional<Placement>& output,
    bool use_local);

/// Registers, on this rank, `boundary` as the style of `module`, for modules
/// that are tied after styling. Ignores a module that is not held by a
/// shared_ptr.
void note_styled(
    torch::nn::Module& module,
    BoundaryKind kind,
    BoundaryPtr boundary);

/// Returns the style of a Linear or an Embedding whose weight is now
/// `parameter` but was another tensor when the module was styled; null if there
/// is none. Throws RuntimeError if such styles differ from each other or from
/// `known` (may be null).
BoundaryPtr style_of_tied(
    const at::Tensor& parameter,
    BoundaryKind kind,
    const Boundary* known);

} // namespace dtensor::detail
