// SPDX-License-Identifier: BSD-3-Clause
// Expectations on DTensors, for tests of programs that use dtensor. The
// expectations throw c10::Error, so they work under any test framework. A
// failure on one rank of run_ranks ends all ranks.
//
//   run_ranks(2, [] {
//     auto mesh = init_device_mesh(torch::kCPU, {2}, {"tp"});
//     auto full = testing::seeded_randn({5, 3}, at::kDouble, 7);
//     auto d = distribute_tensor(full, mesh, {Shard(0)});
//     testing::CollectiveLog log;
//     testing::expect_close(d.sum(0), full.sum(0));
//     testing::expect_layout(d.sum(0), "P(sum)");
//   });
//
// Link dtensor::testing.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/comm/observer.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::testing {

/// Returns standard normal numbers that depend only on shape, dtype and seed.
/// The numbers are the same on every rank, whatever the rank drew before.
DTENSOR_API at::Tensor
seeded_randn(at::IntArrayRef sizes, at::ScalarType dtype, uint64_t seed);

/// Throws unless `actual` has the shape and dtype of the plain `expected` and
/// close values. Every difference must be at most atol + rtol * |expected|; NaN
/// equals NaN. If `actual` is a DTensor, its full tensor is compared, and all
/// ranks of its mesh must make the call. The error names the largest
/// difference.
DTENSOR_API void expect_close(
    const at::Tensor& actual,
    const at::Tensor& expected,
    double rtol = 1e-12,
    double atol = 1e-12);

/// Throws unless `t` is a DTensor with these placements, in the notation of
/// layout/text.h: "S(0) P(sum)".
DTENSOR_API void expect_layout(
    const at::Tensor& t,
    std::string_view placements);

/// Scope that records this rank's collectives.
class DTENSOR_API CollectiveLog : public CommObserver {
 public:
  CollectiveLog();
  void on_collective(const CollectiveEvent& event) override;

  /// Return the number of collectives, of all kinds or of one kind.
  int64_t total() const;
  int64_t count(CollectiveKind kind) const;
  /// Returns the sum of CollectiveEvent::wire_bytes.
  double wire_bytes() const;
  /// Returns the kinds in call order: "all_gather, all_reduce"; "" if there are
  /// none.
  std::string text() const;
  /// Removes all recorded collectives.
  void clear();

 private:
  std::vector<CollectiveKind> kinds_;
  double wire_bytes_ = 0;
  CommObserverGuard guard_;
};

} // namespace dtensor::testing
