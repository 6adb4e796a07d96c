// SPDX-License-Identifier: BSD-3-Clause
// Modules that are tied after styling: head->weight = wte->weight. The head's
// boundary is attached to its former weight, so operators that use the new
// weight find the boundary in a registry of styled modules.
//
// A module does not tell when its weight is replaced, so the registry reads the
// weights of all modules. A weight that has a boundary can only be tied to a
// module with another style. One pass checks this for all weights, and is
// repeated after a change of a weight's reference count.
#include <dtensor/ops/boundary/boundary_impl.h>

#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/error.h>
#include <dtensor/ops/boundary/boundaries_impl.h>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <unordered_map>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

struct Styled {
  std::weak_ptr<torch::nn::Module> module;
  BoundaryKind kind;
  BoundaryPtr boundary;
};

struct StyledModules {
  std::vector<Styled> all;
  size_t next_cleanup = 64; // size that triggers a cleanup
  // Reference counts of weights at the last pass over all modules.
  std::unordered_map<const c10::TensorImpl*, size_t> checked;
  size_t credit = 0; // modules that the next pass may read
  size_t read = 0;   // modules read so far
};

// Modules that a call may read on average. Bounds the cost of programs that
// change the reference counts of many weights between calls.
constexpr size_t kReadPerCall = 16;

// Modules belong to the rank that created them.
RankLocal<StyledModules> styled_modules;

// Returns the module's current weight; null for other kinds of modules.
const at::Tensor* weight_of(torch::nn::Module& module, BoundaryKind kind) {
  if (kind == BoundaryKind::kLinear) {
    auto* const linear = module.as<torch::nn::Linear>();
    return linear == nullptr ? nullptr : &linear->weight;
  }
  auto* const embedding = module.as<torch::nn::Embedding>();
  return embedding == nullptr ? nullptr : &embedding->weight;
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

// Compares the style of each module with that of its current weight.
void check_all(StyledModules& modules) {
  std::unordered_map<const c10::TensorImpl*, size_t> checked;
  modules.read += modules.all.size();
  for (const auto& styled : modules.all) {
    const auto module = styled.module.lock();
    const auto* const weight =
        module == nullptr ? nullptr : weight_of(*module, styled.kind);
    const auto* const own =
        weight == nullptr ? nullptr : boundary_of(*weight, styled.kind);
    if (own == nullptr) {
      continue;
    }
    if (own != styled.boundary.get()) {
      check_same_style(*styled.boundary, *own);
    }
    checked[weight->unsafeGetTensorImpl()] = weight->use_count();
  }
  modules.checked = std::move(checked);
  modules.credit -= modules.all.size();
}

} // namespace

// Removes entries of destroyed modules each time the list has doubled, so that
// the cost per call is constant on average.
void note_styled(
    torch::nn::Module& module,
    BoundaryKind kind,
    BoundaryPtr boundary) {
  auto& modules = styled_modules.get();
  auto& all = modules.all;
  if (all.size() >= modules.next_cleanup) {
    std::erase_if(all, [](const auto& s) { return s.module.expired(); });
    modules.next_cleanup = 2 * all.size() + 64;
  }
  if (const auto weak = module.weak_from_this(); !weak.expired()) {
    all.push_back({weak, kind, std::move(boundary)});
    ++modules.credit;
  }
}

BoundaryPtr style_of_tied(const at::Tensor& parameter, BoundaryKind kind) {
  auto& modules = styled_modules.get();
  modules.read += modules.all.size();
  BoundaryPtr found;
  for (const auto& styled : modules.all) {
    const auto module = styled.kind == kind ? styled.module.lock() : nullptr;
    const auto* const weight =
        module == nullptr ? nullptr : weight_of(*module, kind);
    if (weight == nullptr || !weight->is_same(parameter)) {
      continue;
    }
    if (found == nullptr) {
      found = styled.boundary;
    } else {
      check_same_style(*styled.boundary, *found);
    }
  }
  return found;
}

bool check_tied_styles(const at::Tensor& parameter) {
  auto& modules = styled_modules.get();
  modules.credit += kReadPerCall;
  const auto* const impl = parameter.unsafeGetTensorImpl();
  const auto count = parameter.use_count() - 1; // without the argument itself
  const auto checked = modules.checked.find(impl);
  if (checked != modules.checked.end() && checked->second == count) {
    return true;
  }
  if (modules.credit < modules.all.size()) {
    return false;
  }
  check_all(modules);
  modules.checked[impl] = count;
  return true;
}

size_t styled_modules_read() {
  return styled_modules.get().read;
}

} // namespace dtensor::detail
