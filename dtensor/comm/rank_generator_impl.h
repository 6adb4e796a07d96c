// SPDX-License-Identifier: BSD-3-Clause
// Default generators of ranks that are threads; see rank_generator.h.
#pragma once

#include <dtensor/api.h>

#include <ATen/core/Generator.h>

#include <cstdint>
#include <string>

namespace dtensor::detail {

/// While an instance lives, LibTorch's default generator is replaced by a proxy
/// for the generators of the ranks. The last instance to end restores the
/// original object, with the proxy's state, so existing handles to the object
/// stay valid. Other threads of the program must not draw from the default
/// generator while the first instance starts or the last one ends.
class DTENSOR_INTERNAL_API GeneratorSwap {
 public:
  explicit GeneratorSwap(bool wanted = true);
  ~GeneratorSwap();
  GeneratorSwap(const GeneratorSwap&) = delete;
  GeneratorSwap& operator=(const GeneratorSwap&) = delete;

 private:
  bool wanted_;
};

/// Turns the interception of this thread's random operators on or off, for the
/// rank's generator and RequireEqualOnAllRanks. Returns the previous value. The
/// interception is on for every rank.
bool intercept_random_ops(bool watched);

/// Makes `own` the default generator of this thread's rank, while both this
/// scope and a GeneratorSwap live. An undefined `own` means the process's
/// generator.
class DTENSOR_INTERNAL_API RankGeneratorScope {
 public:
  explicit RankGeneratorScope(at::Generator own);
  ~RankGeneratorScope();
  RankGeneratorScope(const RankGeneratorScope&) = delete;
  RankGeneratorScope& operator=(const RankGeneratorScope&) = delete;

 private:
  at::Generator outer_;
  bool was_watched_;
};

/// Returns this rank's own default generator; undefined if the rank draws from
/// the process's generator.
const at::Generator& own_generator();

/// Returns true if `generator` denotes the default generator. Call it only
/// while the default generator is replaced.
bool is_default_generator(const at::Generator& generator);

/// Return a copy of the default generator, and set the default generator to a
/// given state.
DTENSOR_INTERNAL_API at::Generator copy_of_default_generator();
DTENSOR_INTERNAL_API void set_default_generator(const at::Generator& state);

/// Marks code with results that must be equal on all ranks. In this scope,
/// drawing from the rank's default generator throws an error that names `what`.
class RequireEqualOnAllRanks {
 public:
  explicit RequireEqualOnAllRanks(const std::string& what);
  ~RequireEqualOnAllRanks();
  RequireEqualOnAllRanks(const RequireEqualOnAllRanks&) = delete;
  RequireEqualOnAllRanks& operator=(const RequireEqualOnAllRanks&) = delete;

 private:
  const std::string* outer_;
};

/// One position of a random stream.
struct Draw {
  uint64_t seed = 0;
  uint64_t position = 0;
};

/// Returns the position of this rank's stream of random numbers for DTensors
/// (random/random.h), restarted if the rank's generator was seeded since the
/// last call. States of the default generator include this position. Code that
/// saves and restores these states, such as activation checkpointing in Python,
/// therefore repeats the draws of DTensors too.
Draw& draw_stream();

/// Returns the number of times that this rank has seeded the default generator.
/// Streams derived from its seed restart when this number changes. LibTorch
/// does not report seeding. Outside of ranks, and for a rank without a
/// generator of its own, the first call therefore replaces LibTorch's default
/// generator permanently by one that counts.
uint64_t rank_seedings();

} // namespace dtensor::detail
