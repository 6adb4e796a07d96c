// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/plan/module_claim_impl.h>

#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/world.h>
#include <dtensor/parallel/state/module_members_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <torch/nn/module.h>

#include <mutex>
#include <unordered_map>

namespace dtensor::detail {
namespace {

struct Claim {
  const World* owner = nullptr;
  int count = 0; // nesting: a style may apply other styles
};

struct Claims {
  std::mutex mutex;
  std::unordered_map<const void*, Claim> by_object;
};

Claims& claims() {
  static Claims all;
  return all;
}

// Claims an object by its address, or throws if another rank holds the claim.
const void* claim(const char* where, const char* what, const void* object) {
  const std::lock_guard<std::mutex> lock(claims().mutex);
  const auto known = claims().by_object.find(object);
  if (known != claims().by_object.end()) {
    check_owner(
        where, [what] { return what; }, known->second.owner);
    ++known->second.count;
  } else {
    claims().by_object[object] = {&current_world(), 1};
  }
  return object;
}

void check_tensor(const char* where, const at::Tensor& t) {
  if (t.defined() && is_dtensor(t)) {
    check_owned_by_this_rank(where, *spec_of(t));
  }
}

} // namespace

// The destructor runs if a constructor below throws, because the constructor
// that it delegates to is complete.
ModuleClaim::ModuleClaim(const void* claimed) : claimed_(claimed) {}

ModuleClaim::ModuleClaim(const char* where, const torch::nn::Module& module)
    : ModuleClaim(claim(where, "the module", &module)) {
  check_members(where, module);
  for (const at::Tensor& parameter : module.parameters()) {
    check_tensor(where, parameter);
  }
}

ModuleClaim::ModuleClaim(const char* where, const at::Tensor& parameter)
    : ModuleClaim(
          claim(where, "the parameter", parameter.unsafeGetTensorImpl())) {
  check_tensor(where, parameter);
}

ModuleClaim::~ModuleClaim() {
  const std::lock_guard<std::mutex> lock(claims().mutex);
  const auto known = claims().by_object.find(claimed_);
  if (--known->second.count == 0) {
    claims().by_object.erase(known);
  }
}

} // namespace dtensor::detail
