// SPDX-License-Identifier: BSD-3-Clause
// Comparison of an operator on DTensors with the same operator on plain
// tensors: the values, dtype and sizes of the result, or the text of the error.
#pragma once

#include "operands.h"

#include <gtest/gtest.h>
#include <tests/error_of.h>

#include <functional>
#include <string>
#include <vector>

namespace dtensor::testing {

using Tensors = std::vector<at::Tensor>;
using Compute = std::function<at::Tensor(const Tensors&)>;

inline std::string layouts_of(const Tensors& tensors) {
  std::string text;
  for (const auto& t : tensors) {
    text += (text.empty() ? "" : ", ") +
        (is_dtensor(t) ? to_string(*DTensor(t).spec()) : "plain");
  }
  return text;
}

/// Returns the difference; empty if `mine` is a DTensor with the values of
/// `truth` and a correct spec.
inline std::string difference(const at::Tensor& mine, const at::Tensor& truth) {
  const auto& spec = *DTensor(mine).spec();
  const auto local = DTensor(mine).to_local();
  if (spec.dtype() != truth.scalar_type() ||
      local.scalar_type() != spec.dtype()) {
    return c10::str(
        "a spec of ",
        spec.dtype(),
        ", local ",
        local.scalar_type(),
        ", plain ",
        truth.scalar_type());
  }
  const auto whole = full(mine.detach());
  if (whole.sizes() != truth.sizes()) {
    return c10::str("sizes ", whole.sizes(), ", plain ", truth.sizes());
  }
  const bool equal = at::allclose(
      whole.to(at::kComplexDouble),
      truth.detach().to(at::kComplexDouble),
      1e-6,
      1e-6,
      /*equal_nan=*/true);
  return equal ? "" : c10::str("values ", whole, ", plain ", truth);
}

/// Calls `fn` on `operands` in every combination of the layouts, twice, on
/// meshes of 1, 2 and 3 ranks, and compares with the plain tensors.
inline void expect_same(
    const Tensors& operands,
    const std::vector<Placements>& choices,
    const Compute& fn,
    const std::string& what = "") {
  const auto truth = fn(operands);
  Failures failures;
  for (const auto ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      std::vector<Tensors> all{{}};
      for (size_t i = 0; i < operands.size(); ++i) {
        std::vector<Tensors> longer;
        for (const auto& before : all) {
          for (const auto& p : choices[i]) {
            longer.push_back(before);
            longer.back().push_back(place(operands[i], mesh, p));
          }
        }
        all = std::move(longer);
      }
      for (const auto& placed : all) {
        try {
          auto why = difference(fn(placed), truth);
          why += difference(fn(placed), truth);
          if (!why.empty()) {
            failures.add(what + " " + layouts_of(placed) + ": " + why);
          }
        } catch (const std::exception& e) {
          failures.add(what + " " + layouts_of(placed) + ": " + first_line(e));
        }
      }
    });
  }
  EXPECT_EQ(failures.text(), "");
}

/// Returns the error of `fn` on a mesh of two ranks, which must be equal on
/// both.
inline std::string error_on_ranks(
    const std::function<void(const DeviceMesh&)>& fn) {
  std::string texts[2];
  run_ranks(2, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    texts[rank] = test_text::error_of([&] { fn(mesh); });
  });
  EXPECT_EQ(texts[0], texts[1]);
  return texts[0].substr(0, texts[0].find('\n'));
}

} // namespace dtensor::testing
