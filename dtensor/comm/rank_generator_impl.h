// SPDX-License-Identifier: BSD-3-Clause
// How ranks that are threads get a default generator each; see
// rank_generator.h.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <string>

namespace dtensor::detail {

/// While one lives, LibTorch's default generator is another object, a door to
/// those of the ranks. The last one to go puts the very object of before back,
/// with the state that the other one has then: who holds it holds the default
/// generator still. Other threads of the program may not draw from the default
/// generator while the first begins and the last ends.
class GeneratorSwap {
 public:
  explicit GeneratorSwap(bool wanted = true);
  ~GeneratorSwap();
  GeneratorSwap(const GeneratorSwap&) = delete;
  GeneratorSwap& operator=(const GeneratorSwap&) = delete;

 private:
  bool wanted_;
};

/// Whether operators of this thread that draw look for the rank's generator,
/// and for a SameOnAllRanks; returns what it was. On for every rank.
bool watch_draws(bool watched);

/// Makes `own` the default generator of this thread's rank, while it and a
/// GeneratorSwap live; undefined: the process's.
class RankGeneratorScope {
 public:
  explicit RankGeneratorScope(at::Generator own);
  ~RankGeneratorScope();
  RankGeneratorScope(const RankGeneratorScope&) = delete;
  RankGeneratorScope& operator=(const RankGeneratorScope&) = delete;

 private:
  at::Generator outer_;
  bool was_watched_;
};

/// This rank's own default generator; undefined where the rank draws from the
/// process's.
const at::Generator& own_generator();

/// Whether a program that passes `generator` means the default generator. To be
/// called while the default generator is exchanged.
bool is_default_generator(const at::Generator& generator);

/// A copy of the default generator as it is, and giving the default generator
/// the state of another.
at::Generator copy_of_default_generator();
void set_default_generator(const at::Generator& state);

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

/// How often this rank has seeded the default generator: streams that follow
/// its seed start anew when the count has changed. LibTorch tells nobody, so a
/// rank without a generator of its own, and a program without ranks, exchange
/// LibTorch's for one that counts by their first call, and for good.
uint64_t rank_seedings();

} // namespace dtensor::detail
