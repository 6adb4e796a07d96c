// SPDX-License-Identifier: BSD-3-Clause
// How run_ranks gives every rank a default generator; see rank_generator.h.
#pragma once

#include <ATen/core/Generator.h>

#include <string>
#include <vector>

namespace dtensor::detail {

/// Makes this thread, a rank, use the generator of its RankContext.
class RankGeneratorScope {
 public:
  RankGeneratorScope();
  ~RankGeneratorScope();
  RankGeneratorScope(const RankGeneratorScope&) = delete;
  RankGeneratorScope& operator=(const RankGeneratorScope&) = delete;

 private:
  bool was_included_;
};

/// While it lives, this thread computes what is to be the same on all ranks: a
/// rank that draws from its default generator gets an error that names `what`.
class SameOnAllRanks {
 public:
  explicit SameOnAllRanks(const std::string& what);
  ~SameOnAllRanks();
  SameOnAllRanks(const SameOnAllRanks&) = delete;
  SameOnAllRanks& operator=(const SameOnAllRanks&) = delete;

 private:
  const std::string* outer_;
};

/// How often this thread has seeded the default generator, counted from the
/// first run_ranks or call of this function: streams that follow its seed
/// start anew when the count has changed.
uint64_t rank_seedings();

/// The generators of n ranks, each a copy of the caller's.
class CallerGenerator {
 public:
  explicit CallerGenerator(int64_t n);
  const at::Generator& of_rank(int64_t rank) const {
    return ranks_[static_cast<size_t>(rank)];
  }
  /// The caller goes on where this rank stopped.
  void take_over(int64_t rank) const;

 private:
  std::vector<at::Generator> ranks_;
};

} // namespace dtensor::detail
