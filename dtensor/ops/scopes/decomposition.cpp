// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/scopes/decomposition_impl.h>

#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/tensor/meta_impl.h>

namespace dtensor::detail {
namespace {

RankLocal<const DecompositionScope*> outermost;

} // namespace

DecompositionScope::DecompositionScope(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args)
    : info_(info),
      may_replicate_(!info.random && !wants_gradients(args)),
      outer_(outermost.get()) {
  if (outer_ != nullptr) {
    return;
  }
  visit_tensors(args, [&](const at::Tensor& t, size_t, int) {
    if (is_dtensor(t)) {
      operands_.push_back(spec_of(t));
    } else {
      has_plain_ = true;
    }
  });
  outermost.get() = this;
}

DecompositionScope::~DecompositionScope() {
  if (outer_ == nullptr) {
    outermost.get() = nullptr;
  }
}

void DecompositionScope::refuse(const std::string& inner, const char* why)
    const {
  std::string layouts;
  for (const auto& spec : operands_) {
    layouts += (layouts.empty() ? "" : ", ") + to_string(*spec);
  }
  DTENSOR_THROW_NOT_IMPLEMENTED(
      "[{}] no sharding rule, and {}, which it calls, {}; the operands are {}. "
      "Redistribute them to Replicate first.",
      info_.name,
      inner,
      why,
      layouts);
}

const DecompositionScope* current_decomposition() {
  return outermost.get();
}

} // namespace dtensor::detail
