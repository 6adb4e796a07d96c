// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/deferred/deferred_init.h>

#include <dtensor/deferred/tape_impl.h>
#include <dtensor/error.h>
#include <dtensor/parallel/plan/module_claim_impl.h>
#include <dtensor/parallel/state/state_values_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <utility>

namespace dtensor {
namespace {

constexpr const char* kMaterialize = "materialize";

using Named = std::vector<std::pair<std::string, at::Tensor>>;

void check_deferred(const Named& tensors) {
  std::vector<std::string> strange;
  for (const auto& [name, t] : tensors) {
    if (!is_deferred(t)) {
      strange.push_back(name);
    }
  }
  DTENSOR_CHECK_VALUE(
      strange.empty(),
      "[{}] on the meta device, but not created in a DeferredInit scope: {}. "
      "Create them in one, or fill them with load_weights() or "
      "set_model_state_dict().",
      kMaterialize,
      c10::Join(", ", strange));
}

struct PartOfTape {
  std::shared_ptr<detail::Tape> tape;
  std::vector<detail::RequestedValue> wanted;
  std::vector<at::Tensor> tensors;
};

// Groups the tensors by tape, in the order of the tensors, which is the same on
// all ranks.
std::vector<PartOfTape> by_tape(const Named& tensors) {
  std::vector<PartOfTape> parts;
  for (const auto& [name, t] : tensors) {
    const auto& note = *detail::deferred_of(detail::plain_meta_of(t));
    auto found = std::find_if(parts.begin(), parts.end(), [&](const auto& p) {
      return p.tape == note.tape;
    });
    if (found == parts.end()) {
      found = parts.insert(parts.end(), {note.tape, {}, {}});
    }
    found->wanted.push_back(
        {note.value, is_dtensor(t) ? detail::spec_of(t) : nullptr});
    found->tensors.push_back(t);
  }
  return parts;
}

void materialize_tensors(const Named& tensors) {
  DTENSOR_CHECK(
      !detail::is_deferring(),
      "[{}] a DeferredInit scope is open. Let it end first.",
      kMaterialize);
  check_deferred(tensors);
  for (const auto& part : by_tape(tensors)) {
    const bool is_plain =
        std::all_of(part.wanted.begin(), part.wanted.end(), [](const auto& w) {
          return w.spec == nullptr;
        });
    const auto made = detail::play(*part.tape, part.wanted, is_plain);
    for (size_t i = 0; i < made.size(); ++i) {
      detail::replace_tensor_impl(part.tensors[i], made[i]);
    }
  }
}

} // namespace

void materialize(torch::nn::Module& module) {
  const detail::ModuleClaim claim(kMaterialize, module);
  Named tensors;
  for (const auto& item : detail::tensors_of(kMaterialize, module)) {
    if (item.value().is_meta()) {
      tensors.emplace_back(item.key(), item.value());
    }
  }
  materialize_tensors(tensors);
}

void materialize(c10::ArrayRef<at::Tensor> given) {
  Named tensors;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].defined() && given[i].is_meta()) {
      tensors.emplace_back(c10::str("tensor ", i), given[i]);
    }
  }
  materialize_tensors(tensors);
}

} // namespace dtensor
