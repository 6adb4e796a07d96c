// SPDX-License-Identifier: BSD-3-Clause
// The collectives that are measured, and how: as one rank of a group does it.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/group.h>

#include <array>
#include <functional>
#include <string>

namespace bench {

using Body = std::function<void()>;

/// One thing to measure: what it sets up on a rank, and returns to be timed.
struct Kind {
  const char* name;
  Body (*prepare)(dtensor::Group& group, int64_t bytes);
  /// The smallest input that every rank gets a part of, in elements per rank.
  int64_t elements_per_rank = 0;
  bool has_data = true;

  /// Whether it can be measured with `bytes` of each rank's input.
  bool fits(int64_t ranks, int64_t bytes) const;
};

/// memcpy, all_reduce, all_reduce_of_new, all_gather, reduce_scatter,
/// all_to_all, broadcast, barrier. The first is the copy that an all-reduce
/// cannot do without.
extern const std::array<Kind, 8> kKinds;
/// From 4 B to 16 MB.
extern const std::array<int64_t, 10> kBytes;

/// Of all ranks of this world. All of them call it.
dtensor::GroupPtr group_of_all();

/// kind/ranks/bytes.
std::string name_of(const Kind& kind, int64_t ranks, int64_t bytes);

/// The same on all ranks: about 20 MB or 2000 calls a sample.
int64_t calls_per_sample(int64_t bytes, bool smoke);

/// Microseconds per call, between the first and the last of this rank.
double sample(dtensor::Group& group, const Body& body, int64_t calls);

} // namespace bench
