// SPDX-License-Identifier: BSD-3-Clause
// Recurrent layers with dropout between them. LibTorch would draw by local
// index, so the layers run one at a time, and each layer gets a mask that is
// drawn by global index.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/random_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <vector>

namespace dtensor::detail {
namespace {

using Tensors = std::vector<at::Tensor>;

// Arguments of the layers of one call. An LSTM has a list of two states.
class Layers {
 public:
  explicit Layers(const KernelArgs& args) : args_(args) {
    const auto& hx = args_.at("hx");
    states_ = hx.isTensor() ? Tensors{hx.toTensor()} : hx.toTensorVector();
    parameters_ = args_.at("params").toTensorVector();
    directions_ = args_.flag("bidirectional") ? 2 : 1;
  }

  int64_t count() const {
    return args_.integer("num_layers");
  }
  /// Returns output and states of one layer without dropout.
  Tensors run(int64_t layer, const at::Tensor& input) const {
    torch::jit::Stack call;
    const auto& arguments = args_.op().schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      call.push_back(argument(arguments[i].name(), layer, input));
    }
    args_.op().callBoxed(call);
    Tensors results;
    for (const auto& value : call) {
      results.push_back(value.toTensor());
    }
    return results;
  }

 private:
  c10::IValue argument(
      const std::string& name,
      int64_t layer,
      const at::Tensor& input) const {
    if (name == "input" || name == "data") {
      return input;
    }
    if (name == "hx") {
      Tensors mine;
      for (const auto& state : states_) {
        mine.push_back(state.narrow(0, layer * directions_, directions_));
      }
      return args_.at("hx").isTensor() ? c10::IValue(mine[0])
                                       : c10::IValue(mine);
    }
    if (name == "params") {
      const auto each =
          static_cast<std::ptrdiff_t>(parameters_.size()) / count();
      const auto begin = parameters_.begin() + layer * each;
      return Tensors(begin, begin + each);
    }
    if (name == "num_layers") {
      return int64_t{1};
    }
    return name == "dropout" ? c10::IValue(0.0) : args_.at(name);
  }

  const KernelArgs& args_;
  Tensors states_;
  Tensors parameters_;
  int64_t directions_ = 1;
};

// Returns `t`, the local output of a layer in layout `spec`, with elements
// dropped by global index.
at::Tensor dropped(const at::Tensor& t, const Spec& spec, double p) {
  const auto draw = next_draw(spec.mesh());
  const auto mask =
      sample_bernoulli(spec, draw, 1 - p).to(t.device(), t.dtype());
  return t * (mask * (p == 1 ? 0 : 1 / (1 - p)));
}

// Returns the number of layers that dropout follows.
int64_t dropped_layers(const KernelArgs& args) {
  return args.real("dropout") == 0 || !args.flag("train")
      ? 0
      : args.integer("num_layers") - 1;
}

} // namespace

int64_t recurrent_draws(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  return dropped_layers(KernelArgs(op, *stack));
}

void recurrent_layers_local(KernelArgs& args, const Decision& decision) {
  if (dropped_layers(args) == 0) {
    return args.run_operator();
  }
  const auto p = args.real("dropout");
  const Layers layers(args);
  auto input = args.tensor(args.find("input") >= 0 ? "input" : "data");
  std::vector<Tensors> states(args.op().schema().returns().size() - 1);
  for (int64_t layer = 0; layer < layers.count(); ++layer) {
    const auto results = layers.run(layer, input);
    for (size_t i = 0; i < states.size(); ++i) {
      states[i].push_back(results[i + 1]);
    }
    input = layer + 1 == layers.count()
        ? results[0]
        : dropped(results[0], *decision.outputs[0], p);
  }
  args.returns(std::move(input));
  for (const auto& state : states) {
    args.stack().emplace_back(at::cat(state, 0));
  }
}

} // namespace dtensor::detail
