// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/weights/load_weights.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/plan/module_names_impl.h>
#include <dtensor/parallel/state/state_values_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/tensor_replacement_impl.h>
#include <dtensor/weights/weight_contents_impl.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

namespace dtensor {
namespace {

using detail::is_outside_mesh;
using detail::local_of;
using detail::spec_of;

constexpr const char* kLoadWeights = "load_weights";
// Largest number of heads. Twice this number does not overflow.
constexpr int64_t kMostInterleavedHeads = int64_t{1} << 48;

// A tensor of the model and its source in the file.
struct Task {
  std::string name;
  at::Tensor target;
  WeightSource source;
};

bool is_same_source(
    const WeightFile& file,
    const WeightSource& a,
    const WeightSource& b) {
  return a.transposed == b.transposed &&
      a.interleaved_heads == b.interleaved_heads &&
      (a.name == b.name || file.is_same(a.name, b.name));
}

// Parameters and buffers to load. A tensor with several names is listed once.
// If the file has different data under these names, all sources are kept.
class Tasks {
 public:
  Tasks(
      const torch::nn::Module& module,
      const WeightFile& file,
      const WeightNames& names) {
    const auto tensors = detail::tensors_of(kLoadWeights, module);
    for (const auto& item : tensors) {
      auto source = names ? names(item.key()) : WeightSource{item.key()};
      if (!source.name.empty()) {
        source.name = detail::stored_name(file, source.name);
        names_in_file.insert(source.name);
        add(file, {item.key(), item.value(), std::move(source)});
      }
    }
  }

  std::vector<Task> all; // the first source in the file of each tensor
  std::vector<std::pair<Task, Task>> doubles; // the first and another source
  std::set<std::string> names_in_file;        // of the model's tensors

 private:
  void add(const WeightFile& file, Task task) {
    const auto [known, is_new] =
        places_.try_emplace(task.target.unsafeGetTensorImpl(), all.size());
    if (is_new) {
      all.push_back(std::move(task));
      return;
    }
    auto& first = all[known->second];
    const bool is_there = file.find(task.source.name) != nullptr;
    if (is_there && file.find(first.source.name) == nullptr) {
      first = std::move(task);
    } else if (is_there && !is_same_source(file, first.source, task.source)) {
      doubles.emplace_back(first, std::move(task));
    }
  }

  std::unordered_map<const void*, size_t> places_;
};

bool fits(const Task& task, const WeightInfo& weight) {
  auto sizes = weight.sizes;
  const auto heads = task.source.interleaved_heads;
  if (task.source.transposed) {
    if (sizes.size() != 2) {
      return false;
    }
    std::swap(sizes[0], sizes[1]);
  }
  return task.target.sizes() == at::IntArrayRef(sizes) &&
      (heads == 0 ||
       (!sizes.empty() && 0 < heads && heads <= kMostInterleavedHeads &&
        sizes[0] % (2 * heads) == 0));
}

bool is_ignored(const std::string& name, const LoadWeightsOptions& options) {
  return std::ranges::any_of(options.ignored, [&](const auto& pattern) {
    return detail::matches_glob(pattern, name);
  });
}

// Returns the names in the file that the model does not have.
std::vector<std::string> unexpected_names(
    const std::set<std::string>& wanted,
    const WeightFile& file,
    const LoadWeightsOptions& options) {
  std::vector<std::string> surplus;
  for (const auto& weight : file.weights()) {
    if (options.strict && wanted.count(weight.name) == 0 &&
        !is_ignored(weight.name, options)) {
      surplus.push_back(weight.name);
    }
  }
  return surplus;
}

// Problems with tensors for which the file has no matching weight.
struct Misfits {
  void add(const Task& task, const WeightFile& file) {
    const auto* weight = file.find(task.source.name);
    const auto as = task.source.name == task.name
        ? task.name
        : detail::format_text("{} ({})", task.name, task.source.name);
    if (weight == nullptr) {
      missing.push_back(as);
    } else if (!fits(task, *weight)) {
      misshapen.push_back(detail::format_text(
          "{} is {}{} in the file, {} in the model",
          as,
          shape_text(weight->dtype, weight->sizes),
          task.source.transposed ? " transposed" : "",
          shape_text(task.target.scalar_type(), task.target.sizes())));
    } else {
      file.contents().check_can_be_read(*weight, kLoadWeights);
      if (detail::loses_imaginary_part(*weight, task.target)) {
        complex.push_back(as);
      }
    }
  }

  std::vector<std::string> missing;
  std::vector<std::string> misshapen;
  std::vector<std::string> complex;
};

void check_all(
    const std::vector<Task>& tasks,
    const std::set<std::string>& wanted,
    const WeightFile& file,
    const LoadWeightsOptions& options) {
  Misfits misfits;
  for (const auto& task : tasks) {
    detail::check_can_be_filled(task.name, task.target, kLoadWeights);
    misfits.add(task, file);
  }
  std::string text;
  detail::add_names(text, "not in the file: ", misfits.missing);
  detail::add_names(
      text, "not in the model: ", unexpected_names(wanted, file, options));
  detail::add_names(text, "of another shape: ", misfits.misshapen);
  detail::add_names(
      text, "complex in the file but real in the model: ", misfits.complex);
  DTENSOR_CHECK_VALUE(
      text.empty(),
      "[load_weights] {}: {}. Map names to those of the file with `names`, and "
      "list weights that the model does not use in `ignored`.",
      file.path(),
      text);
}

// Returns the places of rows in a file that interleaves the two halves of each
// of `heads` heads.
Intervals interleaved(const Intervals& rows, int64_t all_rows, int64_t heads) {
  const auto head = all_rows / heads;
  Intervals places;
  for (const auto& interval : rows) {
    for (auto row = interval.begin; row < interval.end; ++row) {
      const auto within = row % head;
      const auto half = within / (head / 2);
      const auto place = row - within + 2 * (within % (head / 2)) + half;
      places.push_back({place, place + 1});
    }
  }
  return places;
}

bool is_partial_tensor(const at::Tensor& target) {
  return is_dtensor(target) && spec_of(target)->has_partial();
}

void load(const Task& task, const WeightFile& file) {
  if (task.target.is_meta()) {
    detail::allocate(task.target);
  }
  if (is_outside_mesh(task.target)) {
    return;
  }
  auto local =
      is_dtensor(task.target) ? local_of(task.target) : task.target.detach();
  auto parts = detail::parts_of(task.target);
  if (const auto heads = task.source.interleaved_heads; heads > 0) {
    parts[0] = interleaved(parts[0], task.target.size(0), heads);
  }
  if (!task.source.transposed) {
    file.read(task.source.name, parts, local);
    return;
  }
  std::swap(parts[0], parts[1]);
  const auto read = at::empty({local.size(1), local.size(0)}, local.options());
  file.read(task.source.name, parts, read);
  local.copy_(read.t());
}

void check_no_terms(const std::vector<Task>& tasks) {
  for (const auto& task : tasks) {
    DTENSOR_CHECK_VALUE(
        !is_partial_tensor(task.target),
        "[load_weights] \"{}\" is {}: cannot load into a Partial tensor. "
        "Redistribute it first.",
        task.name,
        *spec_of(task.target));
  }
}

// Throws if the file has different values under two names of one tensor.
void check_doubles(const Tasks& tasks, const WeightFile& file) {
  for (const auto& [first, again] : tasks.doubles) {
    check_all({again}, tasks.names_in_file, file, {.strict = false});
    const auto values_of = [&](Task task) {
      task.target = task.target.is_meta()
          ? detail::allocated(task.target)
          : at::empty_like(task.target.detach());
      load(task, file);
      return is_dtensor(task.target) ? local_of(task.target) : task.target;
    };
    DTENSOR_CHECK_VALUE(
        detail::have_same_values(values_of(first), values_of(again)),
        "[load_weights] {}: \"{}\" and \"{}\" have different values, but "
        "\"{}\" and \"{}\" are one tensor in the model. Leave out one of them "
        "in `names`, or use a model that does not tie them.",
        file.path(),
        first.source.name,
        again.source.name,
        first.name,
        again.name);
  }
}

} // namespace

std::string detail::stored_name(
    const WeightFile& file,
    const std::string& name) {
  const auto found = file.metadata().find(name);
  const auto* other = found == file.metadata().end()
      ? nullptr
      : std::get_if<std::string>(&found->second);
  return file.find(name) == nullptr && other != nullptr &&
          file.find(*other) != nullptr
      ? *other
      : name;
}

void detail::check_can_be_filled(
    const std::string& name,
    const at::Tensor& target,
    const char* where) {
  const auto& part = is_dtensor(target) ? local_of(target) : target;
  DTENSOR_CHECK_VALUE(
      part.layout() == at::kStrided &&
          at::has_internal_overlap(part) != at::MemOverlap::Yes,
      "[{}] \"{}\"{}. Give it memory of its own first.",
      where,
      name,
      part.layout() == at::kStrided
          ? " has elements that share memory, such as an expanded view"
          : " is sparse");
}

std::vector<Intervals> detail::parts_of(const at::Tensor& target) {
  std::vector<Intervals> parts;
  for (int64_t d = 0; d < target.dim(); ++d) {
    parts.push_back(
        is_dtensor(target) ? local_intervals(*spec_of(target), d)
                           : Intervals{{0, target.size(d)}});
  }
  return parts;
}

detail::WriteScope::WriteScope(const at::Tensor& target) {
  if (target.is_inference() ||
      (is_dtensor(target) && local_of(target).is_inference())) {
    mode_.emplace();
  }
}

void load_weights(
    torch::nn::Module& module,
    const WeightFile& file,
    const LoadWeightsOptions& options) {
  const Tasks tasks(module, file, options.names);
  check_no_terms(tasks.all);
  check_all(tasks.all, tasks.names_in_file, file, options);
  const c10::NoGradGuard no_grad;
  check_doubles(tasks, file);
  for (const auto& task : tasks.all) {
    const detail::WriteScope writes(task.target);
    load(task, file);
    task.target.unsafeGetTensorImpl()->bump_version();
  }
}

} // namespace dtensor
