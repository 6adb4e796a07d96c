// SPDX-License-Identifier: BSD-3-Clause
// Helpers that run an operator on plain tensors and on DTensors in many
// layouts, and compare results and gradients.
#pragma once

#include <dtensor/dtensor.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>
#include <torch/torch.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace dtensor::against_plain {

using TensorList = std::vector<at::Tensor>;
using TensorFn = std::function<TensorList(const TensorList&)>;

/// An operator with its inputs. Only floating-point inputs get gradients.
struct OpCase {
  std::string name;
  TensorList inputs;
  TensorFn fn;
  /// Index of the first input that is always replicated. All later inputs are
  /// replicated, too.
  size_t first_replicated = 99;
  /// True if the result is differentiated.
  bool differentiable = true;
};

/// Returns sums of few powers of two. Such numbers add up exactly, and are
/// equal on every rank.
inline at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randint(-64, 64, sizes, generator, at::kDouble) / 8;
}

/// Returns all combinations of `kinds` on a mesh of `mesh_ndim` dimensions.
inline std::vector<Placements> combinations(
    const Placements& kinds,
    size_t mesh_ndim) {
  std::vector<Placements> all{{}};
  for (size_t m = 0; m < mesh_ndim; ++m) {
    std::vector<Placements> longer;
    for (const auto& layout : all) {
      for (const auto& kind : kinds) {
        longer.push_back(layout);
        longer.back().push_back(kind);
      }
    }
    all = std::move(longer);
  }
  return all;
}

inline std::vector<Placements>
layouts(int64_t ndim, size_t mesh_ndim, bool partial) {
  Placements kinds{Replicate()};
  for (int64_t d = 0; d < ndim; ++d) {
    kinds.push_back(Shard(d));
  }
  if (partial) {
    kinds.push_back(Partial(ReduceOp::kSum));
  }
  return combinations(kinds, mesh_ndim);
}

/// Returns `full` in the layout `placements`, without communication. For
/// Partial(sum), the ranks have different terms.
inline at::Tensor place(
    const at::Tensor& full,
    const DeviceMesh& mesh,
    const Placements& placements) {
  auto term = full;
  Placements cuts = placements;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    auto& p = cuts[static_cast<size_t>(m)];
    if (p.is_partial()) {
      const auto r = mesh.get_local_rank(m);
      const auto n = mesh.size(m);
      // Ranks 0 .. n-2 have factors 1, 2, ...; the last rank's factor makes the
      // sum 1.
      term =
          term * static_cast<double>(r + 1 < n ? r + 1 : 1 - n * (n - 1) / 2);
      p = Replicate();
    }
  }
  const auto cut = distribute_tensor(term, mesh, cuts, std::nullopt);
  FromLocalOptions options;
  options.shape = full.sizes().vec();
  options.stride = full.strides().vec();
  return DTensor::from_local(to_local(cut), mesh, placements, options);
}

inline std::string describe(const TensorList& inputs) {
  std::string text;
  for (const auto& t : inputs) {
    text += (text.empty() ? "" : ", ") + to_string(*DTensor(t).spec());
  }
  return text;
}

/// Lines of failures, kept by rank 0.
class Failures {
 public:
  void add(const std::string& line) {
    if (get_rank() == 0) {
      lines_ += line + "\n";
    }
  }
  const std::string& text() const {
    return lines_;
  }

 private:
  std::string lines_;
};

/// Counts the collectives of this rank during its lifetime.
class CountCollectives : public CommObserver {
 public:
  void on_collective(const CollectiveEvent&) override {
    ++count_;
  }
  int count() const {
    return count_;
  }

 private:
  int count_ = 0;
  CommObserverGuard guard_{*this};
};

inline bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
      at::equal(a, b);
}

inline at::Tensor leaf(const at::Tensor& t) {
  auto copy = t.detach();
  copy.set_requires_grad(t.is_floating_point());
  return copy;
}

struct OneRun {
  TensorList outputs;
  TensorList gradients; // undefined where there is none
};

/// Runs a case once; `grads_of(outputs)` returns the gradients of the outputs.
inline OneRun run_once(
    const OpCase& c,
    const TensorList& inputs,
    const std::function<TensorList(const TensorList&)>& grads_of) {
  TensorList leaves;
  TensorList wanted;
  for (const auto& t : inputs) {
    leaves.push_back(leaf(t));
    if (leaves.back().requires_grad()) {
      wanted.push_back(leaves.back());
    }
  }
  OneRun run;
  run.outputs = c.fn(leaves);
  if (c.differentiable && !wanted.empty()) {
    run.gradients = torch::autograd::grad(
        run.outputs, wanted, grads_of(run.outputs), false, false, true);
  }
  return run;
}

/// Returns the gradients of the plain outputs: fixed numbers.
inline TensorList plain_grads(const TensorList& outputs) {
  TensorList grads;
  for (size_t i = 0; i < outputs.size(); ++i) {
    grads.push_back(numbers(outputs[i].sizes(), 900 + i));
  }
  return grads;
}

inline void compare(
    const OpCase& c,
    const TensorList& inputs,
    const OneRun& truth,
    const OneRun& run,
    Failures& failures) {
  const auto check =
      [&](const TensorList& expected, const TensorList& got, const char* what) {
        if (expected.size() != got.size()) {
          failures.add(c.name + " " + describe(inputs) + ": number of " + what);
          return;
        }
        for (size_t i = 0; i < expected.size(); ++i) {
          if (!expected[i].defined() && !got[i].defined()) {
            continue;
          }
          const auto full = DTensor(got[i]).full_tensor();
          if (!same(expected[i], full)) {
            failures.add(
                c.name + " " + describe(inputs) + ": " + what + " " +
                std::to_string(i) + " " + to_string(*DTensor(got[i]).spec()));
          }
        }
      };
  check(truth.outputs, run.outputs, "result");
  check(truth.gradients, run.gradients, "gradient");
}

/// Checks one layout per input against `truth`, the run on plain tensors. The
/// gradients arrive in layouts that vary from call to call.
inline void check_layouts(
    const OpCase& c,
    const OneRun& truth,
    const DeviceMesh& mesh,
    const std::vector<Placements>& chosen,
    size_t salt,
    Failures& failures) {
  TensorList inputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    inputs.push_back(place(c.inputs[i], mesh, chosen[i]));
  }
  const auto grads = [&](const TensorList& outputs) {
    auto plain = plain_grads(outputs);
    for (size_t i = 0; i < plain.size(); ++i) {
      const auto all =
          layouts(plain[i].dim(), static_cast<size_t>(mesh.ndim()), false);
      plain[i] = place(plain[i], mesh, all[(salt + i) % all.size()]);
    }
    return plain;
  };
  try {
    compare(c, inputs, truth, run_once(c, inputs, grads), failures);
  } catch (const std::exception& e) {
    const std::string text = e.what();
    failures.add(
        c.name + " " + describe(inputs) + " threw " +
        text.substr(0, text.find('\n')));
  }
}

inline void check_layouts(
    const OpCase& c,
    const DeviceMesh& mesh,
    const std::vector<Placements>& chosen,
    size_t salt,
    Failures& failures) {
  const auto truth = run_once(c, c.inputs, plain_grads);
  check_layouts(c, truth, mesh, chosen, salt, failures);
}

/// Checks every combination of layouts, or about 40 of more than 60.
inline void
check_case(const OpCase& c, const DeviceMesh& mesh, Failures& failures) {
  std::vector<std::vector<Placements>> options; // of each input
  size_t count = 1;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const bool fixed = i >= c.first_replicated;
    options.push_back(layouts(
        fixed ? 0 : c.inputs[i].dim(),
        static_cast<size_t>(mesh.ndim()),
        !fixed && c.inputs[i].is_floating_point()));
    count *= options.back().size();
  }
  const auto truth = run_once(c, c.inputs, plain_grads);
  const size_t stride = count > 60 ? count / 37 : 1;
  for (size_t i = 0; i < count; i += stride) {
    std::vector<Placements> chosen(options.size());
    size_t rest = i; // its digits select the layouts, the last input's first
    for (size_t k = options.size(); k-- > 0; rest /= options[k].size()) {
      chosen[k] = options[k][rest % options[k].size()];
    }
    check_layouts(c, truth, mesh, chosen, i, failures);
  }
}

/// Checks all cases on meshes (1), (2), (3), (2, 2) and (2, 3).
inline void check_cases(const std::vector<OpCase>& cases) {
  const std::vector<std::vector<int64_t>> meshes{{1}, {2}, {3}, {2, 2}, {2, 3}};
  for (const auto& shape : meshes) {
    const auto world = c10::multiply_integers(shape);
    Failures failures;
    run_ranks(world, [&] {
      const auto mesh = init_device_mesh(at::kCPU, shape);
      for (const auto& c : cases) {
        check_case(c, mesh, failures);
      }
    });
    EXPECT_EQ(failures.text(), "");
  }
}

/// Makes the case of a function of one tensor with one result.
inline OpCase unary(
    std::string name,
    at::Tensor input,
    std::function<at::Tensor(const at::Tensor&)> fn) {
  return {
      std::move(name),
      {std::move(input)},
      [fn = std::move(fn)](const TensorList& in) {
        return TensorList{fn(in[0])};
      }};
}

using test_text::error_of;

} // namespace dtensor::against_plain
