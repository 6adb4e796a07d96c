// SPDX-License-Identifier: BSD-3-Clause
// Global shapes of results, found by running the operator on meta tensors of
// the global shapes.
#include <dtensor/ops/propagate_impl.h>

#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <dtensor/error.h>
#include <dtensor/ops/path/stack_impl.h>

#include <exception>
#include <string_view>

namespace dtensor::detail {
namespace {

// Returns a tensor of the operand's global shape that has no data. A wrapped
// number stays on the CPU, because LibTorch passes wrapped numbers to kernels
// of every device. PyTorch's Meta kernels written in Python accept wrapped
// numbers on the CPU only.
at::Tensor without_data(const at::Tensor& operand, const Spec& spec) {
  const bool wrapped = operand.unsafeGetTensorImpl()->is_wrapped_number();
  auto result = at::empty_strided(
      spec.sizes(),
      spec.strides(),
      at::TensorOptions()
          .dtype(spec.dtype())
          .device(wrapped ? c10::kCPU : c10::kMeta));
  if (wrapped) {
    // Wrapped numbers do not determine the dtype of the result.
    result.zero_();
    result.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return result;
}

OutputMeta output_meta(const at::Tensor& t) {
  if (!t.defined()) {
    return {{}, {}, at::kFloat, false};
  }
  return {
      Sizes(t.sizes().begin(), t.sizes().end()),
      Sizes(t.strides().begin(), t.strides().end()),
      t.scalar_type(),
      true,
      t.storage_offset()};
}

std::vector<OutputMeta> collect(
    const torch::jit::Stack& results,
    size_t num_returns) {
  std::vector<OutputMeta> outputs;
  for (const auto& value : last_args(results, num_returns)) {
    if (value.isTensor()) {
      outputs.push_back(output_meta(value.toTensor()));
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) {
        outputs.push_back(output_meta(t));
      }
    }
  }
  return outputs;
}

// Replaces device arguments, because the call would run on a real device
// otherwise.
void replace_devices(torch::jit::Stack& stack) {
  for (auto& value : stack) {
    if (value.isDevice()) {
      value = c10::Device(c10::kMeta);
    }
  }
}

// Returns true if there is no Meta kernel for a call. A kernel written in
// Python raises Python's NotImplementedError, whose text begins with this name.
bool is_not_implemented(const std::exception& error) {
  return dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr ||
      (dynamic_cast<const c10::Error*>(&error) == nullptr &&
       std::string_view(error.what()).starts_with("NotImplementedError"));
}

// Throws for an argument that asks for a sparse result.
void check_requested_layout(const OpInfo& info, const OpCall& call) {
  const auto index = call.schema.argumentIndexWithName("layout");
  if (!index || call.args[static_cast<size_t>(*index)].isNone()) {
    return;
  }
  const auto layout = call.args[static_cast<size_t>(*index)].toLayout();
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      layout == at::kStrided,
      "[{}] the result would have layout {}, which DTensors do not support. "
      "Leave out the argument \"layout\".",
      info.name,
      layout);
}

} // namespace

std::optional<std::vector<OutputMeta>> infer_outputs(
    const OpInfo& info,
    const OpCall& call) {
  check_requested_layout(info, call);
  const WithoutModes without_modes;
  if (info.rule != nullptr && info.rule->meta) {
    auto outputs = info.rule->meta(call);
    if (!outputs.empty()) {
      return outputs;
    } // the rule's meta function supports only some calls
  }
  torch::jit::Stack stack(call.args.begin(), call.args.end());
  map_tensors(stack.data(), stack.size(), [&](const at::Tensor& t, size_t i) {
    return without_data(t, *call.inputs[i].spec);
  });
  replace_devices(stack);
  try {
    info.op.callBoxed(&stack);
  } catch (const std::exception& error) {
    if (!is_not_implemented(error)) {
      throw;
    }
    return std::nullopt;
  }
  return collect(stack, info.num_returns);
}

} // namespace dtensor::detail
