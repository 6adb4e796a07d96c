// SPDX-License-Identifier: BSD-3-Clause
// Points of a training step that a rank passes.
#pragma once

#include <dtensor/comm/observer.h>

#include <cstdint>
#include <functional>
#include <utility>

namespace dtensor::faults {

/// Number of points that a rank passes in a step without a fault, and the last
/// point that another rank waits for.
struct Points {
  int64_t all = 0;
  int64_t last_collective = 0;
};

/// Counts the points of the program and every collective.
class PointCounter final : public CommObserver {
 public:
  explicit PointCounter(std::function<void(int64_t)> at_point)
      : at_point_(std::move(at_point)) {}
  void on_collective(const CollectiveEvent& /*event*/) override {
    last_collective_ = points_;
    pass();
  }
  /// Passes a point. Collectives of the fault itself, called at a point, do not
  /// count.
  void pass() {
    if (!inside_) {
      inside_ = true;
      at_point_(points_++);
      inside_ = false;
    }
  }
  Points points() const {
    return {points_, last_collective_};
  }

 private:
  std::function<void(int64_t)> at_point_;
  int64_t points_ = 0;
  int64_t last_collective_ = 0;
  bool inside_ = false;
};

} // namespace dtensor::faults
