// SPDX-License-Identifier: BSD-3-Clause
// OpSlot: what is registered for one operator. It carries the operator's rule
// and its decision cache, so that a call looks nothing up by name.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <dtensor/ops/boundary_impl.h>
#include <dtensor/ops/decision_cache_impl.h>
#include <dtensor/ops/registry.h>

#include <bitset>
#include <optional>
#include <string>
#include <vector>

namespace dtensor::detail {

/// RuleRegistry::global(), to change it; at first it has the rules that the
/// library comes with.
RuleRegistry& registered_rules();

/// Puts kernels under the operator in place of those that it has, made for the
/// rules as they are now. Not while ranks run.
void install_anew(const c10::OperatorHandle& op);

/// Facts of an operator, worked out once.
struct OpInfo {
  explicit OpInfo(const c10::OperatorHandle& op);

  c10::OperatorHandle op;
  std::string name; // "aten::add.Tensor"
  size_t slot;      // number of its decision cache
  size_t num_args;
  size_t num_returns;
  const OpRule* rule = nullptr; // its own, or that of its functional variant
  bool in_place = false;        // writes its first argument and returns it
  bool inplace_view = false;    // changes its shape, as squeeze_
  bool is_view = false; // its results share memory with its first argument
  bool random = false;
  bool is_out = false;
  bool is_region = false;    // intercepted at the autograd key
  bool in_gradients = false; // as its rule says
  OpTraits traits;
  /// Per argument: whether its value is part of the key.
  std::bitset<64> value_matters;
  /// LibTorch's own autograd kernel, for a region whose gradient formula is
  /// made of operators that have rules; null for others.
  std::optional<c10::SafeKernelFunction> stock;
};

/// Runs the operator on the DTensors on the stack, below autograd.
void dispatch(const OpInfo& info, torch::jit::Stack* stack);

/// The same without what rides on its parameters.
void dispatch_in_boundary(const OpInfo& info, torch::jit::Stack* stack);

/// Whether a call with this decision needs nothing but the local operator.
bool is_local_only(const OpInfo& info, const Decision& decision);

/// Whether a region with this decision runs LibTorch's own autograd kernel on
/// the DTensors, without the nodes that make its inputs local.
bool takes_stock_autograd(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args);

/// Runs it at the autograd key: inputs are redistributed and made local with
/// autograd, the operator runs with its own, results become DTensors again.
/// `keys` are those that it was called with.
void dispatch_region(
    const OpInfo& info,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

/// The decision for this call, from this rank's cache or made now; for a caller
/// that knows its key (ops/call_key_impl.h), and for others.
std::shared_ptr<const Decision>
decide(const OpInfo& info, c10::ArrayRef<c10::IValue> args, KeyWords key);
std::shared_ptr<const Decision> decide(
    const OpInfo& info,
    const torch::jit::Stack& stack);

/// Global shapes of the results: the operator on meta tensors. Nothing if it
/// has no meta kernel.
std::optional<std::vector<OutputMeta>> infer_outputs(
    const OpInfo& info,
    const OpCall& call);

/// The kernel registered for an operator, above autograd for a region.
class SlotKernel final : public c10::OperatorKernel {
 public:
  SlotKernel(std::shared_ptr<const OpInfo> info, bool above_autograd)
      : info_(std::move(info)),
        above_autograd_(above_autograd) {}

  void operator()(
      const c10::OperatorHandle&,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) {
    if (above_autograd_) {
      dispatch_region(*info_, keys, stack);
    } else {
      dispatch(*info_, stack);
    }
  }

 private:
  std::shared_ptr<const OpInfo> info_;
  bool above_autograd_;
};

} // namespace dtensor::detail
