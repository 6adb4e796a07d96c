// SPDX-License-Identifier: BSD-3-Clause
// LayoutBoundary: the boundary of all styles that act at the operator that uses
// a module's parameter.
#pragma once

#include <dtensor/comm/observer.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/spec.h>
#include <dtensor/ops/path/boundary_impl.h>
#include <dtensor/parallel/awaited_bias_impl.h>
#include <dtensor/parallel/boundary.h>
#include <dtensor/parallel/input_layout_cache_impl.h>
#include <dtensor/parallel/shared_input_impl.h>
#include <dtensor/parallel/shared_units_impl.h>
#include <dtensor/parallel/style_mesh_impl.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace dtensor::detail {

struct BoundaryLayouts {
  InputLayouts input;
  /// Output layout. nullopt: the layout that the operator produces.
  std::optional<Placement> output;
  bool use_local_output = true;
  /// See RowwiseOptions.
  int64_t overlap_chunks = 1;
  /// See BoundaryOptions. Compared by identity. Null: none.
  std::shared_ptr<const OutputFn> output_fn = nullptr;
  /// True if the boundary also applies to rows of the parameter, which the
  /// module uses one by one.
  bool applies_to_rows = false;
  /// Set for a Linear whose output has no layout: each rank computes the units
  /// it needs.
  SharedUnits shared = {};
  friend bool operator==(const BoundaryLayouts&, const BoundaryLayouts&) =
      default;
};

class LayoutBoundary final : public Boundary {
 public:
  LayoutBoundary(
      const std::string& module_name,
      const torch::nn::Module* module,
      std::string description,
      StyleMesh where,
      BoundaryLayouts layouts,
      Sibling sibling)
      : module_name_(keep_module_name(module_name)),
        module_(module),
        description_(std::move(description)),
        where_(std::move(where)),
        layouts_(std::move(layouts)),
        sibling_(std::move(sibling)) {}

  bool only_layouts() const override {
    return layouts_.overlap_chunks == 1 && layouts_.output_fn == nullptr &&
        layouts_.shared.users == 0 && where_.mesh.contains_this_rank();
  }
  ModuleInput take_input(const at::Tensor& input) const override;
  ResultConversion exit_of(const SpecPtr& made) const override;
  at::Tensor prepare_input(const at::Tensor& input) const override;
  at::Tensor finish_output(const at::Tensor& input, const at::Tensor& output)
      const override;
  void notify_input(const at::Tensor& input) const override;
  void notify_output(const at::Tensor& output) const override;
  at::Tensor finish_product(const at::Tensor& input, const at::Tensor& product)
      const override;
  bool add_pending_bias(const at::Tensor& output, const at::Tensor& bias)
      const override;
  at::Tensor multiply(
      const at::Tensor& input,
      const at::Tensor& weight_t,
      const at::Tensor& bias) const override;
  at::Tensor local_bias(const at::Tensor& bias, const at::Tensor& output)
      const override;
  bool applies_to_rows() const override {
    return layouts_.applies_to_rows;
  }
  std::string_view module_name() const override {
    return module_name_;
  }
  std::string describe() const override {
    return description_;
  }
  void refresh(const at::Tensor& parameter, BoundaryKind kind) const override;

  /// Expects the module to add `bias` after its product. Does nothing without
  /// output_fn.
  void expect_bias(const at::Tensor& bias) const {
    if (layouts_.output_fn != nullptr) {
      awaited_bias_.expect(bias);
    }
  }

  const torch::nn::Module* module() const {
    return module_;
  }
  const BoundaryLayouts& layouts() const {
    return layouts_;
  }
  const StyleMesh& where() const {
    return where_;
  }

 private:
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
  struct Bias {
    SpecPtr given;
    int64_t output_dim = 0;
    SpecPtr added;
    SpecPtr grad; // of the added bias
  };

  Bias layouts_of_bias(const SpecPtr& given, int64_t output_dim) const;

  std::string_view module_name_;
  const torch::nn::Module* module_; // compared, never dereferenced
  std::string description_;
  StyleMesh where_;
  BoundaryLayouts layouts_;
  Sibling sibling_;
  mutable std::array<Seen, 2> seen_ = {}; // of weight and bias
  // Caches of the last call.
  mutable InputLayoutCache known_input_;
  mutable PendingBias awaited_bias_;
  mutable Exit exit_;
  mutable Bias bias_;
};

/// Throws RuntimeError if modules that were tied after styling have different
/// styles.
void check_same_style(const LayoutBoundary& a, const LayoutBoundary& b);

/// Redistributes `y` to layout `output`, unless nullopt. Returns its local
/// tensor if `use_local`.
at::Tensor to_output_layout(
    const at::Tensor& y,
    const StyleMesh& where,
    const std::optional<Placement>& output,
    bool use_local);

/// Return the module's name for messages: "module \"blocks.0.attn\"" or "the
/// module itself".
std::string describe_module(std::string_view name);
std::string describe(const StyleTarget& target);
/// Like describe(), with the type: "module \"w1\" of type
/// torch::nn::LinearImpl".
std::string describe_typed(const StyleTarget& target);

} // namespace dtensor::detail
