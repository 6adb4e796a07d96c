// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/state/state_values_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/rank/plain_draws_impl.h>
#include <dtensor/comm/world.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/shortened_impl.h>
#include <dtensor/tensor/dtensor.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace dtensor::detail {
namespace {

GroupPtr world_group() {
  std::vector<int64_t> ranks(static_cast<size_t>(get_world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return new_group(ranks, "state");
}

// True if this rank alone can read all values.
bool has_full_value(const at::Tensor& value) {
  if (!value.defined() || value.is_meta() || value.layout() != at::kStrided) {
    return false;
  }
  if (!is_dtensor(value)) {
    return true;
  }
  const auto& spec = DTensor(value).spec();
  return spec->mesh().contains_this_rank() &&
      (spec->is_replicated() || spec->mesh().size() == 1);
}

// Returns names, dtypes and shapes as a JSON array, or a JSON string that lists
// tensors without full values.
std::string describe_state(const StateDict& state) {
  auto all = nlohmann::json::array();
  std::vector<std::string> unusable;
  for (const auto& [name, value] : state.pairs()) {
    if (has_full_value(value)) {
      all.push_back(
          {name, static_cast<int>(value.scalar_type()), value.sizes().vec()});
    } else {
      unusable.push_back(name + " is " + state_text(value));
    }
  }
  if (unusable.empty()) {
    return all.dump();
  }
  std::string text;
  add_names(text, "", unusable);
  return nlohmann::json(text).dump();
}

// Returns a full tensor, plain or a DTensor on any mesh, in a layout.
at::Tensor placed_on_mesh(
    const at::Tensor& value,
    const DeviceMesh& mesh,
    PlacementsRef placements) {
  return is_dtensor(value) && DTensor(value).device_mesh() == mesh
      ? DTensor(value).redistribute(placements)
      : distribute_tensor(
            full_tensor(value).to(mesh.device_type()),
            mesh,
            placements,
            std::nullopt);
}

} // namespace

void check_options(const StateDictOptions& options, const char* where) {
  DTENSOR_CHECK_VALUE(
      !options.full_state_dict || !options.local_shards,
      "[{}] full_state_dict and local_shards exclude each other. Choose one.",
      where);
}

at::Tensor state_value(
    const at::Tensor& value,
    const StateDictOptions& options) {
  const c10::NoGradGuard no_grad;
  const HandedOutScope for_saving; // saved shards must not affect draws
  auto result = value.detach();
  if (is_dtensor(result) && options.full_state_dict) {
    result = DTensor(result).full_tensor();
  } else if (is_dtensor(result) && options.local_shards) {
    result = DTensor(result).to_local();
  }
  return options.cpu_offload ? result.to(at::kCPU) : result;
}

bool gets_state(const StateDictOptions& options) {
  return !(options.cpu_offload && options.full_state_dict) || get_rank() == 0;
}

bool fits_state(const at::Tensor& target, const at::Tensor& source) {
  return source.defined() &&
      (source.sizes() == target.sizes() ||
       (is_dtensor(target) && !is_dtensor(source) &&
        source.sizes() == DTensor(target).spec()->local_sizes()));
}

at::Tensor redistribute_like(
    const at::Tensor& target,
    const at::Tensor& source) {
  const c10::NoGradGuard no_grad;
  if (!is_dtensor(target)) {
    return full_tensor(source).to(target.device(), target.scalar_type());
  }
  const auto& spec = DTensor(target).spec();
  const auto value = source.detach().to(target.scalar_type());
  return value.sizes() == spec->sizes()
      ? placed_on_mesh(value, spec->mesh(), spec->placements())
      : DTensor(value.to(spec->mesh().device_type()), spec);
}

at::Tensor replicate_like(const at::Tensor& target, const at::Tensor& source) {
  const c10::NoGradGuard no_grad;
  const auto value = source.detach().to(target.scalar_type());
  if (!is_dtensor(target)) {
    return full_tensor(value).to(target.device());
  }
  const auto& mesh = DTensor(target).device_mesh();
  return placed_on_mesh(value, mesh, replicated_placements(mesh));
}

std::string state_text(const at::Tensor& value) {
  if (!value.defined()) {
    return "undefined";
  }
  return is_dtensor(value) ? to_string(*DTensor(value).spec())
                           : shape_text(value.scalar_type(), value.sizes());
}

// Broadcasts the description of the dictionary, then each tensor. An error on
// rank 0 must reach the other ranks, which would wait for the tensors.
StateDict broadcast_state(const StateDict& state, const char* where) {
  const c10::NoGradGuard no_grad;
  const auto group = world_group();
  const bool is_root = group->rank() == 0;
  const auto text = group->all_gather_strings(
      is_root ? describe_state(state) : std::string())[0];
  const auto items = nlohmann::json::parse(text);
  DTENSOR_CHECK_VALUE(
      !items.is_string(),
      "[{}] rank 0 lacks values to broadcast: {}. Pass a state dict made with "
      "full_state_dict = true.",
      where,
      items.get<std::string>());
  StateDict result;
  for (const auto& item : items) {
    const auto name = item[0].get<std::string>();
    const auto dtype = static_cast<at::ScalarType>(item[1].get<int>());
    const auto value = is_root
        ? full_tensor(state[name]).to(at::kCPU).contiguous()
        : at::empty(item[2].get<std::vector<int64_t>>(), dtype);
    result.insert(name, group->broadcast(value, 0));
  }
  return result;
}

void add_names(
    std::string& text,
    const char* what,
    const std::vector<std::string>& names) {
  constexpr size_t kMostNames = 100;
  constexpr size_t kLongest = 300; // a name, and up to two shapes
  if (names.empty()) {
    return;
  }
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    shown.push_back(shortened(names[i], kLongest));
  }
  text += c10::str(text.empty() ? "" : "; ", what, c10::Join(", ", shown));
  if (names.size() > kMostNames) {
    text += c10::str(" and ", names.size() - kMostNames, " more");
  }
}

void StateProblems::check(const char* where) const {
  std::string text;
  add_names(text, "missing: ", missing_);
  add_names(text, "unknown: ", unexpected_);
  add_names(text, "of another shape: ", misshapen_);
  DTENSOR_CHECK_VALUE(
      text.empty(),
      "[{}] {}. Pass a state dict of the same architecture, or strict = false "
      "to allow different names.",
      where,
      text);
}

TiedNames::TiedNames(const StateDict& tensors) {
  std::unordered_map<const void*, std::string> known;
  for (const auto& item : tensors) {
    const auto [first, is_new] =
        known.try_emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (!item.value().defined() || is_new) {
      continue;
    }
    firsts_[item.key()] = first->second;
    auto& names = by_first_[first->second];
    if (names.empty()) {
      names.push_back(first->second);
    }
    names.push_back(item.key());
  }
}

const std::vector<std::string>& TiedNames::names_of(
    const std::string& name) const {
  static const std::vector<std::string> none;
  const auto first = firsts_.find(name);
  const auto found =
      by_first_.find(first == firsts_.end() ? name : first->second);
  return found == by_first_.end() ? none : found->second;
}

bool have_same_values(const at::Tensor& a, const at::Tensor& b) {
  const auto are_equal = a.eq(b).logical_or(a.ne(a).logical_and(b.ne(b))).all();
  return are_equal.item<bool>();
}

} // namespace dtensor::detail
