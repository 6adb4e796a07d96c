// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/weights/load_weights.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/glob_impl.h>
#include <dtensor/parallel/state_values_impl.h>
#include <dtensor/tensor/become_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/weights/weight_contents_impl.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <utility>

namespace dtensor {
namespace {

using detail::has_no_part;
using detail::local_of;
using detail::spec_of;

constexpr const char* kLoadWeights = "load_weights";
constexpr int64_t kMostInterleavedHeads = int64_t{1} << 48; // twice as many fit

// A tensor of the model, and where it is.
struct Task {
  std::string name;
  at::Tensor target;
  WeightSource source;
};

// Parameters and buffers, each once.
std::vector<Task> tasks_of(
    const torch::nn::Module& module,
    const WeightNames& names) {
  std::vector<Task> tasks;
  for (const auto& item : detail::tensors_of(module)) {
    auto source = names ? names(item.key()) : WeightSource{item.key()};
    if (!source.name.empty()) {
      tasks.push_back({item.key(), item.value(), std::move(source)});
    }
  }
  return tasks;
}

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
  return std::any_of(
      options.ignored.begin(), options.ignored.end(), [&](const auto& pattern) {
        return detail::matches_glob(pattern, name);
      });
}

// Names in the file for which the model has no place.
std::vector<std::string> surplus_of(
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

// Tensors that the file has nothing for that fits.
struct Misfits {
  void add(const Task& task, const WeightFile& file) {
    const auto* weight = file.find(task.source.name);
    const auto as = task.source.name == task.name
        ? task.name
        : c10::str(task.name, " (", task.source.name, ")");
    if (weight == nullptr) {
      missing.push_back(as);
    } else if (!fits(task, *weight)) {
      misshapen.push_back(c10::str(
          as,
          " is ",
          shape_text(weight->dtype, weight->sizes),
          task.source.transposed ? " transposed" : "",
          " for ",
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
    const WeightFile& file,
    const LoadWeightsOptions& options) {
  Misfits misfits;
  std::set<std::string> wanted;
  for (const auto& task : tasks) {
    wanted.insert(task.source.name);
    detail::check_can_be_filled(task.name, task.target, kLoadWeights);
    misfits.add(task, file);
  }
  std::string text;
  detail::add_names(text, "not in the file: ", misfits.missing);
  detail::add_names(
      text, "not in the model: ", surplus_of(wanted, file, options));
  detail::add_names(text, "of another shape: ", misfits.misshapen);
  detail::add_names(text, "complex for what is real: ", misfits.complex);
  DTENSOR_CHECK_VALUE(
      text.empty(),
      kLoadWeights,
      file.path(),
      ": ",
      text,
      ". Say in `names` what the file calls them, in `ignored` what the model "
      "does without.");
}

// What this rank has of each dimension.
std::vector<Intervals> parts_of(const at::Tensor& target) {
  std::vector<Intervals> parts;
  for (int64_t d = 0; d < target.dim(); ++d) {
    parts.push_back(
        is_dtensor(target) ? local_intervals(*spec_of(target), d)
                           : Intervals{{0, target.size(d)}});
  }
  return parts;
}

// Of `heads` heads of rows, the two halves of each in turn: where the rows of
// the model stand in the file.
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

bool is_a_term(const at::Tensor& target) {
  return is_dtensor(target) && spec_of(target)->has_partial();
}

void load(const Task& task, const WeightFile& file) {
  if (task.target.is_meta()) {
    detail::allocate(task.target);
  }
  if (has_no_part(task.target)) {
    return;
  }
  auto local =
      is_dtensor(task.target) ? local_of(task.target) : task.target.detach();
  auto parts = parts_of(task.target);
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
        !is_a_term(task.target),
        kLoadWeights,
        task.name,
        " is ",
        *spec_of(task.target),
        ", a sum of which no rank has a part. Redistribute it first.");
  }
}

} // namespace

void detail::check_can_be_filled(
    const std::string& name,
    const at::Tensor& target,
    const char* where) {
  const auto& part = is_dtensor(target) ? local_of(target) : target;
  DTENSOR_CHECK_VALUE(
      part.layout() == at::kStrided &&
          at::has_internal_overlap(part) != at::MemOverlap::Yes,
      where,
      name,
      part.layout() == at::kStrided
          ? " has elements that share their memory, as a view that was expanded"
          : " is sparse",
      ". Give it memory of its own first.");
}

void load_weights(
    torch::nn::Module& module,
    const WeightFile& file,
    const LoadWeightsOptions& options) {
  const auto tasks = tasks_of(module, options.names);
  check_no_terms(tasks);
  check_all(tasks, file, options);
  const c10::NoGradGuard no_grad;
  for (const auto& task : tasks) {
    load(task, file);
    task.target.unsafeGetTensorImpl()->bump_version();
  }
}

} // namespace dtensor
