// SPDX-License-Identifier: BSD-3-Clause
// LayoutBoundary: the boundary of every style that acts where a parameter
// meets its module's input.
#pragma once

#include <dtensor/comm/observer.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/spec.h>
#include <dtensor/ops/boundary_impl.h>
#include <dtensor/parallel/style.h>

#include <string>
#include <string_view>

namespace dtensor::detail {

struct InputLayouts {
  Placement plain; // of a plain input
  Placement desired;
  /// Size of the whole input's last dimension, if the module knows it; else 0.
  int64_t features = 0;
  friend bool operator==(const InputLayouts&, const InputLayouts&) = default;
};

struct BoundaryLayouts {
  InputLayouts input;
  Placement output;
  bool use_local_output = true;
  /// See RowwiseOptions.
  int64_t overlap_chunks = 1;
  friend bool operator==(const BoundaryLayouts&, const BoundaryLayouts&) =
      default;
};

class LayoutBoundary final : public Boundary {
 public:
  LayoutBoundary(
      const std::string& module_name,
      const torch::nn::Module* module,
      DeviceMesh mesh,
      BoundaryLayouts layouts)
      : module_name_(keep_module_name(module_name)),
        module_(module),
        mesh_(std::move(mesh)),
        layouts_(layouts) {}

  at::Tensor prepare_input(const at::Tensor& input) const override;
  at::Tensor finish_output(const at::Tensor& output) const override;
  bool multiplies() const override {
    return layouts_.overlap_chunks > 1;
  }
  at::Tensor multiply(
      const at::Tensor& input,
      const at::Tensor& weight_t,
      const at::Tensor& bias) const override;
  at::Tensor local_bias(const at::Tensor& bias, const at::Tensor& output)
      const override;
  std::string_view module_name() const override {
    return module_name_;
  }

  const torch::nn::Module* module() const {
    return module_;
  }
  const BoundaryLayouts& layouts() const {
    return layouts_;
  }
  const DeviceMesh& mesh() const {
    return mesh_;
  }

 private:
  std::string_view module_name_;
  const torch::nn::Module* module_; // for identity only
  DeviceMesh mesh_;
  BoundaryLayouts layouts_;
};

/// `x` as a DTensor on `mesh`, plain ones being in layout `plain`, brought to
/// `desired`. Siblings that ask the same of the same tensor share one result:
/// q, k and v gather their input once and reduce its gradient once.
at::Tensor shared_input(
    const at::Tensor& x,
    const DeviceMesh& mesh,
    const InputLayouts& layouts);

/// `y` in layout `output`, as its local part if `use_local`.
at::Tensor
to_output_layout(const at::Tensor& y, const Placement& output, bool use_local);

/// Turns `parameter` itself (the TensorImpl that module, optimizer and ties
/// see) into a DTensor in layout `placement`, from rank src_data_rank's
/// values, and lets its gradient land in that layout. A tied parameter that
/// has the layout already stays as it is. `what` names it for messages.
void distribute_parameter(
    at::Tensor& parameter,
    const StyleTarget& target,
    const Placement& placement,
    const std::string& what);

/// Attaches a boundary to a parameter that is a DTensor. Throws RuntimeError
/// if the module has one already, or a tied one differs.
void attach_boundary(
    at::Tensor& parameter,
    BoundaryKind kind,
    const StyleTarget& target,
    const BoundaryLayouts& layouts);

/// "module \"blocks.0.attn\"", or "the module itself", for messages.
std::string describe_module(std::string_view name);
std::string describe(const StyleTarget& target);

} // namespace dtensor::detail
