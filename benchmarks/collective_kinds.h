// SPDX-License-Identifier: BSD-3-Clause
// Collectives to measure, and the measurement on one rank of a group.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/group.h>

#include <array>
#include <functional>
#include <string>

namespace bench {

using Body = std::function<void()>;

/// A kind of measurement: sets up a rank and returns the body to time.
struct Kind {
  const char* name;
  Body (*prepare)(dtensor::Group& group, int64_t bytes);
  /// Elements per rank of the smallest input that gives every rank a shard.
  int64_t elements_per_rank = 0;
  bool has_data = true;

  /// True if this kind can be measured with `bytes` bytes of input per rank.
  bool fits(int64_t ranks, int64_t bytes) const;
};

/// memcpy, all_reduce, all_reduce_of_new, all_gather, reduce_scatter,
/// all_to_all, broadcast, barrier. memcpy is the minimum copy of an all-reduce.
extern const std::array<Kind, 8> kKinds;
/// Sizes from 4 B to 16 MB.
extern const std::array<int64_t, 10> kBytes;

/// Returns a group of all ranks. All ranks must call this function.
dtensor::GroupPtr group_of_all();

/// Returns kind/ranks/bytes.
std::string name_of(const Kind& kind, int64_t ranks, int64_t bytes);

/// Returns the number of calls per sample, equal on all ranks: about 20 MB or
/// 2000 calls.
int64_t calls_per_sample(int64_t bytes, bool smoke);

/// Returns the microseconds per call, from the first to the last call of this
/// rank.
double sample(dtensor::Group& group, const Body& body, int64_t calls);

} // namespace bench
