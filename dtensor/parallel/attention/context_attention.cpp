// SPDX-License-Identifier: BSD-3-Clause
// Kernels of scaled_dot_product_attention, and of layers that contain
// attention, under the dispatch key that every rank includes, above autograd.
// Outside of scopes they redispatch the call.
#include <dtensor/parallel/attention/context_attention_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/rank/plain_draws_impl.h>
#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/torch_internals.h>

#include <ATen/ExpandUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>
#include <torch/library.h>

#include <cmath>
#include <string>

namespace dtensor::detail {
namespace {

constexpr const char* kContext = "context_parallel";

std::string text_of(const at::Tensor& t) {
  return shape_text(t.scalar_type(), t.sizes());
}

bool have_fitting_heads(const AttentionArgs& args) {
  if (!args.grouped) {
    return true;
  }
  if (args.query.dim() < 3 || args.key.dim() < 3 || args.value.dim() < 3) {
    return false;
  }
  const auto heads = args.key.size(-3);
  return args.value.size(-3) == heads &&
      (heads == 0 ? args.query.size(-3) == 0
                  : args.query.size(-3) % heads == 0);
}

bool fit(const AttentionArgs& args) {
  const auto dtype = args.query.scalar_type();
  return args.query.dim() >= 2 && args.key.dim() >= 2 &&
      args.value.dim() >= 2 && at::isFloatingType(dtype) &&
      args.key.scalar_type() == dtype && args.value.scalar_type() == dtype &&
      args.query.size(-1) == args.key.size(-1) &&
      args.key.size(-2) == args.value.size(-2) && have_fitting_heads(args);
}

// Broadcasts and flattens batch dimensions: (B, H, length, features).
class FourDims {
 public:
  explicit FourDims(const AttentionArgs& args) : grouped_(args.grouped) {
    for (const auto* t : {&args.query, &args.key, &args.value}) {
      batch_ = at::infer_size(batch_, batch_of(*t));
    }
  }

  at::Tensor of(const at::Tensor& t) const {
    auto sizes = batch_;
    if (grouped_) {
      sizes.push_back(t.size(-3));
    }
    sizes.push_back(t.size(-2));
    sizes.push_back(t.size(-1));
    auto wide = t.expand(sizes);
    while (wide.dim() < 4) {
      wide = wide.unsqueeze(0);
    }
    return wide.dim() == 4 ? wide : wide.flatten(0, wide.dim() - 4);
  }

  // Restores the operator's output shape.
  at::Tensor back(const at::Tensor& out) const {
    auto sizes = batch_;
    if (grouped_) {
      sizes.push_back(out.size(1));
    }
    sizes.push_back(out.size(2));
    sizes.push_back(out.size(3));
    return out.sizes() == sizes ? out : out.reshape(sizes);
  }

 private:
  at::IntArrayRef batch_of(const at::Tensor& t) const {
    return t.sizes().slice(
        0, static_cast<size_t>(t.dim()) - (grouped_ ? 3 : 2));
  }

  bool grouped_;
  std::vector<int64_t> batch_;
};

// Assigns tokens to ranks for a local shard that is sharded like the buffers.
// Without buffers, shards have the same size on every rank.
TokensOfRanks tokens_of_shard(
    const at::Tensor& part,
    const char* name,
    const ContextScope& scope) {
  Group& group = get_group(scope.mesh);
  const int64_t here = part.size(-2);
  const int64_t length = scope.length.value_or(here * group.size());
  auto tokens = tokens_of_ranks(length, group.size(), scope.balanced);
  const int64_t mine = total_size(tokens[static_cast<size_t>(group.rank())]);
  DTENSOR_CHECK_VALUE(
      mine == here,
      "[{}] the {}, {}, has {}, but this rank's local shard of the buffers' {} "
      "has {}. Pass a local shard of that sequence, or DTensors.",
      kContext,
      name,
      text_of(part),
      pluralize(here, "token"),
      pluralize(length, "token"),
      mine);
  if (!scope.length) {
    Sizes sizes(part.sizes());
    sizes[sizes.size() - 2] = length;
    group.assume(*Spec::make(
        scope.mesh, {Shard(part.dim() - 2)}, sizes, part.scalar_type()));
  }
  return tokens;
}

at::Tensor attend_plain(const AttentionArgs& args, const ContextScope& scope) {
  check_context_call(args);
  const auto queries = tokens_of_shard(args.query, "query", scope);
  const auto keys = tokens_of_shard(args.key, "key", scope);
  return attend_local_shards(
      args, {scope.mesh, 0}, queries, keys, scope.method);
}

// Applies autocast, because its dispatch key has a lower priority than the key
// of this kernel.
AttentionArgs cast(AttentionArgs args) {
  const auto device = args.query.device().type();
  if (at::autocast::is_autocast_available(device) &&
      at::autocast::is_autocast_enabled(device)) {
    const auto dtype = at::autocast::get_autocast_dtype(device);
    for (auto* t : {&args.query, &args.key, &args.value}) {
      *t = at::autocast::cached_cast(dtype, *t, device);
    }
  }
  return args;
}

std::optional<at::Tensor> attend_in_context(
    const AttentionArgs& given,
    const ContextScope& scope) {
  const auto args = cast(given);
  const int count =
      is_dtensor(args.query) + is_dtensor(args.key) + is_dtensor(args.value);
  if (count > 0) {
    return count == 3 ? attend_dtensors(args, scope) : std::nullopt;
  }
  return scope.mesh.size() == 1 ? std::nullopt
                                : std::optional(attend_plain(args, scope));
}

bool has_no_heads(const at::Tensor& query) {
  return !is_dtensor(query) && query.dim() > 2 && query.size(-3) == 0;
}

at::Tensor attention_kernel(
    c10::DispatchKeySet keys,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout,
    bool causal,
    std::optional<double> scale,
    bool grouped) {
  if (const auto* scope = current_context()) {
    if (auto result = attend_in_context(
            {query, key, value, mask, dropout, causal, scale, grouped},
            *scope)) {
      return *std::move(result);
    }
  }
  // The CPU kernel draws no random numbers on a rank without heads, but the
  // call must be counted on all ranks.
  const bool draws =
      dropout > 0 && !is_dtensor(query) && query.device().is_cpu();
  const DrawingCall call(DrawKind::kReads, draws);
  // Calls inside the kernel are for local tensors, which are not sharded
  // sequences.
  const OutsideContext outside;
  if (kAttentionNeedsHeads && has_no_heads(query)) {
    return std::get<0>(at::_scaled_dot_product_attention_math(
        query, key, value, mask, dropout, causal, std::nullopt, scale));
  }
  return at::_ops::scaled_dot_product_attention::redispatch(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRankKey),
      query,
      key,
      value,
      mask,
      dropout,
      causal,
      scale,
      grouped);
}

// Kernel of LibTorch's fused layers, whose attention has an operator of its own
// that would see the tokens of this rank only.
void fused_layer_kernel(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const auto* scope = current_context();
  const auto& input =
      torch::jit::peek(*stack, 0, op.schema().arguments().size()).toTensor();
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      scope == nullptr || scope->mesh.size() == 1 || is_dtensor(input),
      "[{}] {} is not supported for a sharded sequence: it would attend to the "
      "tokens of this rank only. In Python, call "
      "torch.backends.mha.set_fastpath_enabled(False) first; in C++, call "
      "scaled_dot_product_attention.",
      kContext,
      op.schema().name());
  const OutsideContext outside; // calls inside are for local tensors
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRankKey),
      stack);
}

static_assert(kRankKey == c10::DispatchKey::DeferredInit);
TORCH_LIBRARY_IMPL(aten, DeferredInit, m) {
  m.impl("scaled_dot_product_attention", &attention_kernel);
  for (const char* name :
       {"_native_multi_head_attention", "_transformer_encoder_layer_fwd"}) {
    m.impl(
        name, torch::CppFunction::makeFromBoxedFunction<&fused_layer_kernel>());
  }
}

} // namespace

bool is_computed_in_context(
    const c10::OperatorName& op,
    c10::ArrayRef<c10::IValue> args) {
  const auto* scope = current_context();
  return scope != nullptr &&
      op.name == at::_ops::scaled_dot_product_attention::name &&
      dim_of_tokens(
          {.query = args[0].toTensor(),
           .key = args[1].toTensor(),
           .value = args[2].toTensor()},
          *scope)
          .has_value();
}

// Defined beside the kernel, so that code that opens a scope links the kernel.
bool watch_attention(bool watched) {
  return intercept_random_ops(watched);
}

void check_context_call(const AttentionArgs& args) {
  const bool masked = args.mask && args.mask->defined();
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      !masked && args.dropout == 0,
      "[{}] {} is not supported for a sharded sequence. Leave it out, or pass "
      "DTensors outside of the scope, where the sequence is gathered.",
      kContext,
      masked ? "attn_mask" : "dropout");
  DTENSOR_CHECK_VALUE(
      fit(args),
      "[{}] invalid query, key and value: {}, {} and {}{} enable_gqa. Pass "
      "(..., heads, length, features) of one floating-point dtype.",
      kContext,
      text_of(args.query),
      text_of(args.key),
      text_of(args.value),
      args.grouped ? " with" : " without");
}

at::Tensor attend_local_shards(
    const AttentionArgs& args,
    const ContextRanks& ranks,
    const TokensOfRanks& queries,
    const TokensOfRanks& keys,
    RotateMethod method) {
  const FourDims dims(args);
  const auto features = static_cast<double>(args.query.size(-1));
  const RingCall call{
      .ranks = ranks,
      .queries = queries,
      .keys = keys,
      .causal = args.causal,
      .scale = args.scale.value_or(1 / std::sqrt(features)),
      .method = method};
  const auto attend =
      method == RotateMethod::kUlysses ? ulysses_attention : ring_attention;
  return dims.back(attend(
      dims.of(args.query), dims.of(args.key), dims.of(args.value), call));
}

} // namespace dtensor::detail
