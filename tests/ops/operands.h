// SPDX-License-Identifier: BSD-3-Clause
// Operands for tests of operators: full tensors that are equal on every rank,
// and the same values in a given layout.
#pragma once

#include <dtensor/dtensor.h>
#include <dtensor/layout/text.h>
#include <torch/torch.h>

#include <mutex>
#include <string>
#include <vector>

namespace dtensor::testing {

/// Returns uniform numbers in (0.1, 0.9), equal on every rank.
inline at::Tensor uniform(at::IntArrayRef sizes, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::rand(sizes, generator, at::kDouble) * 0.8 + 0.1;
}

/// Returns integers from 1 to 6.
inline at::Tensor small_ints(at::IntArrayRef sizes, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randint(1, 7, sizes, generator, at::kLong);
}

/// Returns this rank's term of `full` on a mesh of one dimension. The ranks
/// have different terms, which reduce to `full`.
inline at::Tensor
partial_term(const at::Tensor& full, const DeviceMesh& mesh, ReduceOp op) {
  const auto n = mesh.size(0);
  const auto rank = mesh.get_local_rank(0);
  const auto noise = [&](int64_t r) {
    auto generator =
        at::detail::createCPUGenerator(static_cast<uint64_t>(77 + r));
    return at::isFloatingType(full.scalar_type())
        ? at::rand(full.sizes(), generator, full.scalar_type())
        : at::randint(0, 5, full.sizes(), generator, full.scalar_type());
  };
  if (op == ReduceOp::kMax || op == ReduceOp::kMin) {
    const auto away = rank == 0 ? at::zeros_like(full) : noise(rank);
    return op == ReduceOp::kMax ? full - away : full + away;
  }
  const auto total = op == ReduceOp::kAvg ? full * n : full;
  if (rank > 0) {
    return noise(rank);
  }
  auto rest = total;
  for (int64_t r = 1; r < n; ++r) {
    rest = rest - noise(r);
  }
  return rest;
}

/// Returns `full` in layout `p` on a mesh of one dimension, without
/// communication.
inline at::Tensor
place(const at::Tensor& full, const DeviceMesh& mesh, const Placement& p) {
  if (p.is_partial()) {
    return DTensor::from_local(
        partial_term(full, mesh, p.reduce_op()), mesh, {p});
  }
  return distribute_tensor(full, mesh, {p}, std::nullopt);
}

inline at::Tensor full(const at::Tensor& t) {
  return is_dtensor(t) ? DTensor(t).full_tensor() : t;
}

inline bool close(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
      at::allclose(a, b, 1e-9, 1e-10, /*equal_nan=*/true);
}

/// Failures, one line per case. All ranks report failures; each is kept once.
class Failures {
 public:
  void add(const std::string& line) {
    if (get_rank() == 0) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
    }
  }
  std::string text() const {
    std::string all;
    for (const auto& line : lines_) {
      all += line + "\n";
    }
    return all;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// Returns the first line of an exception's text.
inline std::string first_line(const std::exception& e) {
  const std::string text = e.what();
  return text.substr(0, text.find('\n'));
}

} // namespace dtensor::testing
