// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/checkpoint/manifest_impl.h>
#include <dtensor/checkpoint/read_part_impl.h>
#include <dtensor/checkpoint/saved_tensors_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/state/state_values_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/tensor_replacement_impl.h>
#include <dtensor/weights/weight_contents_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace dtensor {
namespace {

using detail::kExtraPrefix;
using detail::kLoadCheckpoint;
using detail::kOptimizerPrefix;

// Destination of one tensor. Values are read into `value`. `value` is either
// the program's own memory (`is_own`), or replaces `tensor` (or its local
// shard) after all checks have passed.
struct Target {
  std::string name;
  at::Tensor tensor;
  at::Tensor value;
  bool is_own = true;
};

// State of one load: the targets, and the dictionaries that are built from the
// loaded values.
class Loading {
 public:
  Loading(
      detail::OpenedCheckpoint opened,
      const CheckpointState& state,
      bool strict,
      const std::vector<int64_t>& ranks)
      : opened_(std::move(opened)),
        state_(state),
        strict_(strict),
        ranks_(ranks.begin(), ranks.end()) {}

  // Collects the targets. Throws for wrong names and shapes; changes nothing.
  void plan() {
    if (state_.model != nullptr) {
      add_all(detail::tensors_of(kLoadCheckpoint, *state_.model));
    }
    if (state_.tensors != nullptr) {
      add_all(*state_.tensors);
    }
    if (state_.optimizer != nullptr) {
      add_optimizer();
    }
    if (state_.extra != nullptr) {
      add_extra();
    }
    if (strict_ && state_.model != nullptr) {
      find_surplus();
    }
    check();
  }

  // Returns lines that must be equal on all ranks: the checkpoint, the options,
  // and the targets.
  std::vector<std::string> lines(
      const std::string& path,
      const LoadOptions& options) const {
    std::vector<std::string> lines = {
        path + (opened_.manifest ? " of " + opened_.manifest->checksum : ""),
        options.share_reading ? "share_reading" : "no share_reading"};
    for (const auto& target : targets_) {
      lines.push_back(target.name + " " + detail::state_text(target.tensor));
    }
    return lines;
  }

  // Verifies all bytes, and reads the tensors with memory that the program does
  // not use yet.
  void prepare(detail::PartReader& reader) {
    for (const auto& target : targets_) {
      reader.check(target.name, target.value);
      if (!target.is_own) {
        reader.read(target.name, target.value);
      }
    }
    doubles_.compare(reader);
  }

  // Throws if one tensor of the model has two different values in the
  // checkpoint.
  void check_doubles() const {
    doubles_.check();
  }

  // Prepares the optimizer: the last step that can fail. Call this function
  // once the steps above have succeeded on all ranks.
  void prepare_optimizer() {
    if (state_.optimizer != nullptr) {
      set_optimizer_ = detail::prepare_optimizer_state_dict(
          *state_.model,
          *state_.optimizer,
          optimizer_,
          {.strict = strict_},
          /*takes=*/true);
    }
  }

  void finish(std::optional<detail::PartReader>& reader) {
    for (const auto& target : targets_) {
      const detail::WriteScope writes(target.tensor);
      if (target.is_own) {
        reader->read(target.name, target.value);
      } else if (target.tensor.is_meta()) {
        detail::replace_tensor_impl(target.tensor, target.value);
      }
      target.tensor.unsafeGetTensorImpl()->bump_version();
    }
    if (set_optimizer_) {
      set_optimizer_();
    }
    if (state_.extra != nullptr) {
      *state_.extra = std::move(extra_);
    }
  }

  const WeightFilePtr& file() const {
    return opened_.file;
  }

 private:
  // Returns the weights with that prefix, except those of the model.
  std::vector<WeightInfo> with_prefix(const char* prefix) const {
    std::vector<WeightInfo> found;
    if (opened_.file != nullptr) {
      for (const auto& weight : opened_.file->weights()) {
        if (weight.name.starts_with(prefix) && known_.count(weight.name) == 0) {
          found.push_back(weight);
        }
      }
    }
    return found;
  }

  // Throws if a rank of the target's mesh does not load, because its peers
  // would wait for it forever.
  void check_all_load(const std::string& name, const at::Tensor& target) const {
    for (const auto rank : detail::spec_of(target)->mesh().ranks()) {
      DTENSOR_CHECK_VALUE(
          ranks_.count(rank) > 0,
          "[load_checkpoint] \"{}\" is also on rank {}, which is not in the "
          "group that loads. Pass a group with all ranks of its mesh.",
          name,
          rank);
    }
  }

  // Adds a target. `is_own` is true for the program's own tensors. Allocates
  // memory for tensors on the meta device.
  void add(const std::string& name, const at::Tensor& target, bool is_own) {
    if (is_dtensor(target)) {
      check_all_load(name, target);
    }
    if (is_dtensor(target) && detail::spec_of(target)->has_partial()) {
      terms_.push_back(detail::format_text(
          "\"{}\" is {}", name, to_string(*detail::spec_of(target))));
    }
    known_.insert(name);
    const auto& weight = *opened_.find(name);
    opened_.file->contents().check_can_be_read(weight, kLoadCheckpoint);
    detail::check_can_be_filled(name, target, kLoadCheckpoint);
    if (detail::loses_imaginary_part(weight, target)) {
      complex_.push_back(name);
    }
    if (!target.is_meta()) {
      targets_.push_back({name, target, target, is_own});
      return;
    }
    // All names of a tensor share one value.
    auto& value = values_[target.unsafeGetTensorImpl()];
    if (!value.defined()) {
      value = detail::allocated(target);
    }
    targets_.push_back({name, target, value, /*is_own=*/false});
  }

  // Returns true if the checkpoint has the tensor `name` under another name.
  // Several modules may share a tensor.
  bool has_another_name(const detail::TiedNames& tied, const std::string& name)
      const {
    const auto& names = tied.names_of(name);
    return std::ranges::any_of(names, [&](const auto& other) {
      return opened_.find(other) != nullptr;
    });
  }

  void add_all(const StateDict& tensors) {
    const detail::TiedNames tied(tensors);
    std::unordered_map<const void*, std::string> added;
    for (const auto& item : tensors) {
      const auto name = opened_.stored_name(item.key());
      const auto* weight = opened_.find(name);
      known_.insert(item.key());
      known_.insert(name);
      if (weight == nullptr) {
        if (strict_ && !has_another_name(tied, item.key())) {
          missing_.push_back(item.key());
        }
      } else if (item.value().sizes() != at::IntArrayRef(weight->sizes)) {
        misshapen_.push_back(detail::format_text(
            "{} is {} for {}",
            item.key(),
            shape_text(weight->dtype, weight->sizes),
            shape_text(item.value().scalar_type(), item.value().sizes())));
      } else if (const auto [first, is_new] = added.try_emplace(
                     item.value().unsafeGetTensorImpl(), name);
                 is_new) {
        add(name, item.value(), /*is_own=*/true);
      } else if (!opened_.file->is_same(first->second, name)) {
        doubles_.add(first->second, name, item.value());
      }
    }
  }

  // Adds the optimizer's state. "optimizer.state.w1.weight.exp_avg" gets the
  // layout of the parameter w1.weight.
  void add_optimizer() {
    const auto parameters = detail::tensors_of(kLoadCheckpoint, *state_.model);
    const auto weights = with_prefix(kOptimizerPrefix);
    find_missing_options(weights.empty());
    for (const auto& weight : weights) {
      const auto key =
          weight.name.substr(std::string_view(kOptimizerPrefix).size());
      const std::string_view state = "state.";
      const auto dot = key.rfind('.');
      const auto* parameter =
          key.starts_with(state) && dot != key.npos && dot > state.size()
          ? parameters.find(key.substr(state.size(), dot - state.size()))
          : nullptr;
      const bool is_like = parameter != nullptr && parameter->dim() > 0 &&
          parameter->sizes() == at::IntArrayRef(weight.sizes);
      // The optimizer may keep its state in another dtype than the parameter's.
      auto target = is_like ? detail::empty_like_target(*parameter)
                            : at::empty(weight.sizes, weight.dtype);
      optimizer_.insert(key, target);
      add(weight.name, target, /*is_own=*/false);
    }
  }

  void find_missing_options(bool has_none) {
    const auto keys =
        get_optimizer_state_dict(*state_.model, *state_.optimizer).keys();
    if (!strict_ || keys.empty()) {
      return;
    }
    if (has_none) {
      missing_.push_back(kOptimizerPrefix + std::string("*"));
      return;
    }
    for (const auto& key : keys) {
      const auto name = kOptimizerPrefix + key;
      if (key.starts_with("param_groups.") && opened_.find(name) == nullptr) {
        missing_.push_back(name);
      }
    }
  }

  void add_extra() {
    if (opened_.manifest) {
      extra_ = opened_.manifest->extra;
    }
    for (const auto& weight : with_prefix(kExtraPrefix)) {
      if (opened_.manifest && !opened_.is_non_model_state(weight.name)) {
        continue; // a weight of the saved model
      }
      const auto key =
          weight.name.substr(std::string_view(kExtraPrefix).size());
      const auto given = state_.extra->find(key);
      const auto* like = given == state_.extra->end()
          ? nullptr
          : std::get_if<at::Tensor>(&given->second);
      const bool fits = like != nullptr && like->defined() &&
          like->sizes() == at::IntArrayRef(weight.sizes);
      auto target =
          fits ? at::empty_like(*like) : at::empty(weight.sizes, weight.dtype);
      extra_[key] = target;
      add(weight.name, target, /*is_own=*/false);
    }
  }

  void find_surplus() {
    if (opened_.file == nullptr) {
      return;
    }
    for (const auto& weight : opened_.file->weights()) {
      if (known_.count(weight.name) == 0 &&
          !opened_.is_non_model_state(weight.name)) {
        surplus_.push_back(weight.name);
      }
    }
  }

  void check() const {
    DTENSOR_CHECK_VALUE(
        terms_.empty(),
        "[load_checkpoint] cannot load into a Partial tensor: {}. Redistribute "
        "it first.",
        c10::Join("; ", terms_));
    std::string text;
    detail::add_names(text, "not in the checkpoint: ", missing_);
    detail::add_names(text, "not in the model: ", surplus_);
    detail::add_names(text, "of another shape: ", misshapen_);
    detail::add_names(
        text, "complex in the checkpoint but real in the model: ", complex_);
    DTENSOR_CHECK_VALUE(
        text.empty(),
        "[load_checkpoint] {}. Load it into a matching model, or load what "
        "matches with strict = false.",
        text);
  }

  detail::OpenedCheckpoint opened_;
  const CheckpointState& state_;
  bool strict_;
  std::unordered_set<int64_t> ranks_;
  std::vector<Target> targets_;
  // Values for tensors on the meta device.
  std::unordered_map<const void*, at::Tensor> values_;
  std::unordered_set<std::string> known_;
  StateDict optimizer_;
  CheckpointExtra extra_;
  detail::DuplicateWeights doubles_;
  std::vector<std::string> missing_;
  std::vector<std::string> surplus_;
  std::vector<std::string> misshapen_;
  std::vector<std::string> complex_;
  std::vector<std::string> terms_;
  std::function<void()> set_optimizer_;
};

} // namespace

void load_checkpoint(
    const std::string& path,
    const CheckpointState& state,
    const LoadOptions& options) {
  const c10::NoGradGuard no_grad;
  const auto group = detail::group_or_world(options.group);
  std::optional<Loading> loading;
  const auto error = detail::error_in([&] {
    DTENSOR_CHECK_VALUE(
        state.optimizer == nullptr || state.model != nullptr,
        "[load_checkpoint] `optimizer` is set but `model` is not. Pass both.");
    loading.emplace(
        detail::open_checkpoint(path), state, options.strict, group->ranks());
    loading->plan();
  });
  const auto what = path + " was not loaded. ";
  detail::check_none_failed(*group, error, what, kLoadCheckpoint);
  detail::check_same_on_all_ranks(
      *group, loading->lines(path, options), "", kLoadCheckpoint);
  // The program's tensors are not changed before all checks have passed on all
  // ranks.
  std::optional<detail::PartReader> reader;
  if (loading->file() != nullptr) {
    reader.emplace(*loading->file(), group, options);
    loading->prepare(*reader);
  }
  const auto damaged = detail::error_in([&] {
    const auto damage = reader ? reader->damage() : std::string();
    DTENSOR_CHECK(
        damage.empty(),
        "[load_checkpoint] {}. Load an older checkpoint.",
        damage);
    loading->check_doubles();
  });
  detail::check_none_failed(*group, damaged, what, kLoadCheckpoint);
  const auto unfit = detail::error_in([&] { loading->prepare_optimizer(); });
  detail::check_none_failed(*group, unfit, what, kLoadCheckpoint);
  loading->finish(reader);
}

} // namespace dtensor
