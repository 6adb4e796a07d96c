// SPDX-License-Identifier: BSD-3-Clause
// Modules that are tied after styling: head->weight = wte->weight. The head's
// boundary is attached to its former weight, so operators that use the new
// weight find the boundary in a registry of styled modules.
#include <dtensor/ops/boundary/boundary_impl.h>

#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/error.h>

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

struct Styled {
  std::weak_ptr<torch::nn::Module> module;
  const at::Tensor* weight; // member of the module
  BoundaryKind kind;
  BoundaryPtr boundary;
};

struct StyledModules {
  std::vector<Styled> all;
  size_t next_cleanup = 64; // size that triggers a cleanup
};

// Modules belong to the rank that created them.
RankLocal<StyledModules> styled_modules;

// Returns the weight that the module has as its member; null for any other
// module type.
template <class... Holders>
const at::Tensor* weight_in(torch::nn::Module& module) {
  const at::Tensor* weight = nullptr;
  const auto look = [&](auto* holder) {
    weight = holder == nullptr ? weight : &holder->weight;
  };
  (look(module.as<Holders>()), ...);
  return weight;
}

const at::Tensor* weight_of(torch::nn::Module& module, BoundaryKind kind) {
  switch (kind) {
    case BoundaryKind::kLinear:
      return weight_in<
          torch::nn::Linear,
          torch::nn::Conv1d,
          torch::nn::Conv2d,
          torch::nn::Conv3d,
          torch::nn::ConvTranspose1d,
          torch::nn::ConvTranspose2d,
          torch::nn::ConvTranspose3d>(module);
    case BoundaryKind::kEmbedding:
      return weight_in<torch::nn::Embedding>(module);
    case BoundaryKind::kNorm:
      return weight_in<torch::nn::LayerNorm>(module);
  }
  return nullptr;
}

// Throws if modules that were tied after styling have different styles.
void check_same_style(const Boundary& a, const Boundary& b) {
  DTENSOR_CHECK(
      a.layouts() == b.layouts() && a.where() == b.where(),
      "[boundary] {} was tied to {}, which is styled differently. Give both "
      "the same style.",
      describe_module(a.module_name()),
      describe_module(b.module_name()));
}

} // namespace

// Removes entries of destroyed modules each time the list has doubled, so that
// the cost per call is constant on average.
void note_styled(
    torch::nn::Module& module,
    BoundaryKind kind,
    BoundaryPtr boundary) {
  auto& [all, next_cleanup] = styled_modules.get();
  if (all.size() >= next_cleanup) {
    std::erase_if(all, [](const auto& s) { return s.module.expired(); });
    next_cleanup = 2 * all.size() + 64;
  }
  const auto* const weight = weight_of(module, kind);
  const auto weak = module.weak_from_this();
  if (weight != nullptr && !weak.expired()) {
    all.push_back({weak, weight, kind, std::move(boundary)});
  }
}

// A model of n modules compares n * n weights in its first step, so the loop
// reads only the weight of each module.
BoundaryPtr style_of_tied(
    const at::Tensor& parameter,
    BoundaryKind kind,
    const Boundary* known) {
  BoundaryPtr found;
  for (const auto& styled : styled_modules.get().all) {
    if (styled.kind != kind || styled.boundary.get() == known ||
        styled.module.expired() || !styled.weight->is_same(parameter)) {
      continue;
    }
    if (known != nullptr) {
      check_same_style(*styled.boundary, *known);
    } else {
      found = styled.boundary;
      known = found.get();
    }
  }
  return found;
}

} // namespace dtensor::detail
