// SPDX-License-Identifier: BSD-3-Clause
// The points of a training step that a rank passes.
#pragma once

#include <dtensor/comm/observer.h>

#include <cstdint>
#include <functional>
#include <utility>

namespace dtensor::faults {

/// How many points a rank of a step without a fault passes, and which is the
/// last that another rank waits for.
struct Points {
  int64_t all = 0;
  int64_t last_collective = 0;
};

/// Counts points, those of the program and every collective.
class PointCounter final : public CommObserver {
 public:
  explicit PointCounter(std::function<void(int64_t)> at_point)
      : at_point_(std::move(at_point)) {}
  void on_collective(const CollectiveEvent& /*event*/) override {
    last_collective_ = points_;
    pass();
  }
  /// What is called at a point, the fault itself, is none.
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
