// SPDX-License-Identifier: BSD-3-Clause
// Local kernels that several families share, and kernels of pointwise
// operators.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/real.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include <utility>

namespace dtensor {
namespace {

using namespace detail;

bool is_first_of_sum(const Spec& spec) {
  const auto& coordinate = spec.mesh().get_coordinate();
  for (size_t m = 0; m < spec.placements().size(); ++m) {
    if (spec.placements()[m].is_partial(ReduceOp::kSum) &&
        (*coordinate)[m] != 0) {
      return false;
    }
  }
  return true;
}

// Kernel of where() with a tensor and a number. The number becomes a replicated
// DTensor, because a plain tensor beside a partial sum is refused.
void where_number(KernelArgs& args) {
  const auto& self = args.at("self");
  const auto& other = args.at("other");
  const auto& tensor = self.isTensor() ? self.toTensor() : other.toTensor();
  const auto& number = self.isTensor() ? other.toScalar() : self.toScalar();
  const auto dtype = at::result_type(tensor, number);
  const auto like = first_spec(args.all());
  const auto operand = [&](const c10::IValue& value) {
    return value.isTensor()
        ? value.toTensor().to(dtype)
        : place_plain(
              at::scalar_tensor(number, tensor.options().dtype(dtype)), *like);
  };
  args.returns(
      at::where(args.tensor("condition"), operand(self), operand(other)));
}

// Kernel of hinge_embedding_loss. LibTorch clamps in place, which would change
// the layout of a partial sum.
void hinge_embedding_loss(KernelArgs& args) {
  const auto self = args.tensor("self");
  const auto target = args.tensor("target");
  // LibTorch rounds the margin to the dtype of the operand.
  const auto margin =
      at::scalar_tensor(args.real("margin"), self.scalar_type()).item();
  const auto apart = at::rsub(self, margin).clamp_min(0);
  const auto loss =
      at::where(target.ne(1), apart, 0).add(at::where(target.ne(-1), self, 0));
  const auto reduction = args.integer("reduction");
  args.returns(
      reduction == at::Reduction::Mean      ? loss.mean()
          : reduction == at::Reduction::Sum ? loss.sum()
                                            : loss);
}

// Returns a tensor of one element that determines the result dtype like the
// operand: it has the same dtype and number of dimensions, and is a wrapped
// number if the operand is one.
at::Tensor one_element(const at::Tensor& operand, const OpInput& input) {
  const Sizes ones(static_cast<size_t>(input.dim()), 1);
  auto one = at::ones(ones, at::TensorOptions().dtype(input.spec->dtype()));
  if (operand.unsafeGetTensorImpl()->is_wrapped_number()) {
    one.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return one;
}

// Runs the operator, or returns zeros in the same autograd graph as on other
// ranks. `zero` returns the number 0, given the empty operand.
void run_or_return_zeros(
    KernelArgs& args,
    const Decision& decision,
    at::Tensor (*zero)(const at::Tensor&)) {
  const auto first = args.at(0).toTensor();
  if (first.numel() > 0) {
    return args.run_operator();
  }
  args.returns();
  for (const auto& output : decision.outputs) {
    auto result = output == nullptr
        ? at::Tensor()
        : first.new_zeros(output->local_sizes(), output->dtype());
    if (first.requires_grad() && result.defined() &&
        (result.is_floating_point() || result.is_complex())) {
      result = result + zero(first);
    }
    args.stack().emplace_back(std::move(result));
  }
}

} // namespace

LocalKernel detail::boxed(std::function<LocalKernelFunction> kernel) {
  return [kernel = std::move(kernel)](
             const c10::OperatorHandle& op,
             const Decision& decision,
             torch::jit::Stack* stack) {
    KernelArgs args(op, *stack);
    kernel(args, decision);
  };
}

void detail::fft_of_empty_local(KernelArgs& args, const Decision& decision) {
  const auto self = args.tensor("self");
  const auto& result = *decision.outputs[0];
  if (result.numel() == 0) {
    return args.run_operator();
  }
  const bool is_real = !at::isComplexType(result.dtype());
  const auto converted = is_real ? at::real(self) : self.to(result.dtype());
  args.returns(converted.reshape(result.local_sizes()));
}

void detail::zeros_if_empty(KernelArgs& args, const Decision& decision) {
  run_or_return_zeros(
      args, decision, [](const at::Tensor& first) { return first.sum(); });
}

void detail::zeros_of_squares_if_empty(
    KernelArgs& args,
    const Decision& decision) {
  run_or_return_zeros(args, decision, [](const at::Tensor& first) {
    return (first * first).sum();
  });
}

void detail::write_number_once(KernelArgs& args, const Decision& decision) {
  if (!is_first_of_sum(*decision.outputs[0])) {
    args.stack().back() = at::Scalar(0);
  }
  args.run_operator();
}

std::vector<OutputMeta> detail::pointwise_meta(const OpCall& call) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      call.schema.name().c_str(), call.schema.overload_name().c_str());
  torch::jit::Stack stack(call.args.begin(), call.args.end());
  std::vector<int64_t> sizes;
  map_tensors(stack.data(), stack.size(), [&](const at::Tensor& t, size_t i) {
    const auto& input = call.inputs[i];
    sizes = at::infer_size(sizes, input.sizes());
    return one_element(t, input);
  });
  op.callBoxed(stack);
  Sizes strides = dtensor::contiguous_strides(sizes);
  for (const auto& input : call.inputs) {
    if (input.sizes() == SizesRef(sizes)) {
      strides = dense_strides(sizes, input.spec->strides());
      break;
    }
  }
  std::vector<OutputMeta> outputs;
  for (const auto& value : stack) {
    outputs.push_back(
        {Sizes(sizes.begin(), sizes.end()),
         strides,
         value.toTensor().scalar_type(),
         true});
  }
  return outputs;
}

DTENSOR_RULES(pointwise_kernels) {
  rules.kernel("hinge_embedding_loss", with_args(hinge_embedding_loss));
  rules.kernel("where.ScalarOther", with_args(where_number));
  rules.kernel("where.ScalarSelf", with_args(where_number));
}

} // namespace dtensor
