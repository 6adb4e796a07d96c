// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/state/module_members_impl.h>

#include <dtensor/ops/boundary/converter_impl.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include <algorithm>
#include <array>

namespace dtensor::detail {
namespace {

namespace nn = torch::nn;

// Exposes the protected dictionary of Module.
struct Registered : nn::Module {
  using nn::Module::parameters_;
};

// Calls fn for the members of a module of type Impl. Returns false for another
// type.
using Visit = bool (*)(nn::Module& module, MemberFn fn);

// Visits the members that `Members` lists for types like Impl.
template <class Impl, class Members>
bool visit(nn::Module& module, MemberFn fn) {
  auto* const impl = dynamic_cast<Impl*>(&module);
  if (impl != nullptr) {
    Members::visit(*impl, fn);
  }
  return impl != nullptr;
}

struct Weight {
  static void visit(auto& impl, MemberFn fn) {
    fn("weight", impl.weight);
  }
};
struct WeightAndBias {
  static void visit(auto& impl, MemberFn fn) {
    fn("weight", impl.weight);
    fn("bias", impl.bias);
  }
};
struct OfNorm {
  static void visit(auto& impl, MemberFn fn) {
    WeightAndBias::visit(impl, fn);
    fn("running_mean", impl.running_mean);
    fn("running_var", impl.running_var);
    fn("num_batches_tracked", impl.num_batches_tracked);
  }
};
struct OfCell {
  static void visit(auto& impl, MemberFn fn) {
    fn("weight_ih", impl.weight_ih);
    fn("weight_hh", impl.weight_hh);
    fn("bias_ih", impl.bias_ih);
    fn("bias_hh", impl.bias_hh);
  }
};
struct OfAttention {
  static void visit(auto& impl, MemberFn fn) {
    fn("in_proj_weight", impl.in_proj_weight);
    fn("in_proj_bias", impl.in_proj_bias);
    fn("bias_k", impl.bias_k);
    fn("bias_v", impl.bias_v);
    fn("q_proj_weight", impl.q_proj_weight);
    fn("k_proj_weight", impl.k_proj_weight);
    fn("v_proj_weight", impl.v_proj_weight);
  }
};

constexpr std::array<Visit, 26> kVisits = {
    visit<nn::LinearImpl, WeightAndBias>,
    visit<nn::EmbeddingImpl, Weight>,
    visit<nn::LayerNormImpl, WeightAndBias>,
    visit<nn::BilinearImpl, WeightAndBias>,
    visit<nn::EmbeddingBagImpl, Weight>,
    visit<nn::GroupNormImpl, WeightAndBias>,
    visit<nn::MultiheadAttentionImpl, OfAttention>,
    visit<nn::PReLUImpl, Weight>,
    visit<nn::Conv1dImpl, WeightAndBias>,
    visit<nn::Conv2dImpl, WeightAndBias>,
    visit<nn::Conv3dImpl, WeightAndBias>,
    visit<nn::ConvTranspose1dImpl, WeightAndBias>,
    visit<nn::ConvTranspose2dImpl, WeightAndBias>,
    visit<nn::ConvTranspose3dImpl, WeightAndBias>,
    visit<nn::BatchNorm1dImpl, OfNorm>,
    visit<nn::BatchNorm2dImpl, OfNorm>,
    visit<nn::BatchNorm3dImpl, OfNorm>,
    visit<nn::InstanceNorm1dImpl, OfNorm>,
    visit<nn::InstanceNorm2dImpl, OfNorm>,
    visit<nn::InstanceNorm3dImpl, OfNorm>,
    visit<nn::RNNCellImpl, OfCell>,
    visit<nn::LSTMCellImpl, OfCell>,
    visit<nn::GRUCellImpl, OfCell>,
    visit<nn::NLLLossImpl, Weight>,
    visit<nn::CrossEntropyLossImpl, Weight>,
    visit<nn::BCEWithLogitsLossImpl, Weight>,
};

void check_own_members(
    const char* where,
    const std::string& name,
    nn::Module& module) {
  const auto buffers = module.named_buffers(/*recurse=*/false);
  for_each_member(module, [&](const char* member, const at::Tensor& held) {
    const auto* parameter = registered_parameters(module).find(member);
    const auto* registered =
        parameter != nullptr ? parameter : buffers.find(member);
    DTENSOR_CHECK(
        registered == nullptr || registered->is_same(held),
        "[{}] the {} of {} of type {} is not the {} that is registered under "
        "that name, as after an assignment to the member. {}",
        where,
        member,
        describe_module(name),
        module.name(),
        parameter != nullptr ? "parameter" : "buffer",
        parameter != nullptr
            ? "Set it with tie_weights() or tie_parameter(), which register it "
              "too."
            : "Copy values to it with copy_().");
  });
}

} // namespace

bool for_each_member(nn::Module& module, MemberFn fn) {
  return std::ranges::any_of(
      kVisits, [&](Visit visit) { return visit(module, fn); });
}

TensorDict& registered_parameters(nn::Module& module) {
  return module.*(&Registered::parameters_);
}

void check_members(const char* where, const nn::Module& module) {
  check_own_members(where, "", const_cast<nn::Module&>(module));
  for (const auto& child : module.named_modules("", /*include_self=*/false)) {
    check_own_members(where, child.key(), *child.value());
  }
}

} // namespace dtensor::detail
