// SPDX-License-Identifier: BSD-3-Clause
// Random numbers of plain tensors on ranks with local shards of different
// sizes.
//
// A random operator takes as many numbers from the generator as its tensor has
// elements. Ranks with shards of different sizes would advance their generators
// differently, and then draw different numbers for replicated tensors. Once the
// program has received such shards, a random operator therefore takes a single
// number from the rank's generator, and draws from another generator seeded by
// this number. The rank's generator then depends only on the number of calls,
// which is equal on all ranks.
//
//   auto h = dropout(q(x));   // 2, 2 and 0 heads on three ranks
//   auto y = dropout(o(h));   // equal on all three
//
// Operators that make or overwrite a tensor (randn, normal_) draw as in
// LibTorch while the program uses no uneven shard. A training loop thus gets
// the same batches as on one rank.
#pragma once

#include <ATen/core/Generator.h>
#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/layout/spec.h>

#include <cstdint>

namespace dtensor::detail {

/// Kinds of random operators.
enum class DrawKind {
  kMakes,   // makes or overwrites a tensor of given sizes: randn, normal_
  kReads,   // draws per element of an input: dropout, rand_like
  kByValue, // number of draws depends on values: poisson, rrelu
};

/// Properties of the local tensors that this rank's program has received.
struct LocalTensorUse {
  /// True if a local tensor came from a layout with data that differ between
  /// ranks.
  bool shards = false;
  /// True if a local tensor came from a layout with shards of different sizes,
  /// since the last seeding.
  bool uneven = false;
  /// True while uneven shards are in use: the program has received one, and has
  /// not yet received a replicated tensor after converting an uneven shard back
  /// to a DTensor.
  bool in_use = false;
  /// True if an uneven shard has been converted back to a DTensor.
  bool taken_back = false;
  uint64_t seedings = 0;
  /// Id of the last spec. Receiving a tensor of this spec again changes none of
  /// the flags.
  uint64_t known_spec = 0;
};

extern RankLocal<LocalTensorUse> handed_out;

void note_other_tensor(const Spec& spec, LocalTensorUse& mine);
void note_tensor_back(const Spec& spec, LocalTensorUse& mine);

/// Records that the program receives this rank's local tensor of `spec`.
inline void record_local_tensor(const Spec& spec) {
  LocalTensorUse& mine = handed_out.get();
  if (spec.id() != mine.known_spec) {
    note_other_tensor(spec, mine);
  }
}

/// Records that the program uses plain tensors that are shards without a spec.
void note_shards(bool uneven);

/// Records that a plain tensor of the program became a DTensor of `spec`.
inline void record_converted_back(const Spec& spec) {
  LocalTensorUse& mine = handed_out.get();
  if (mine.in_use && !mine.taken_back) {
    note_tensor_back(spec, mine);
  }
}

/// Restores the record at the end of the scope, unless the rank was seeded
/// meanwhile. For local tensors that do not outlive the scope.
class HandedOutScope {
 public:
  HandedOutScope() : now_(handed_out.get()), before_(now_) {}
  ~HandedOutScope();
  HandedOutScope(const HandedOutScope&) = delete;
  HandedOutScope& operator=(const HandedOutScope&) = delete;

 private:
  LocalTensorUse& now_;
  LocalTensorUse before_;
};

/// Resets all operators to LibTorch's way of drawing. Seeding calls this
/// function.
void end_uneven_draws();

/// Flags of the record that get_state() saves and set_state() restores.
uint8_t draw_flags();
void set_draw_flags(uint8_t flags);

/// Returns true if each call of an operator of this kind takes a single number.
bool reseeds_per_call(DrawKind kind);

/// Takes one number from this rank's generator. Returns a generator seeded by
/// that number; the next call of this function seeds the same generator again.
const at::Generator& generator_of_call();

/// Marks one call of a random operator on plain tensors. In nested scopes, the
/// outermost applies. If the call takes a single number, all operators inside
/// it draw from the generator seeded by that number.
class DrawingCall {
 public:
  explicit DrawingCall(DrawKind kind, bool draws = true);
  ~DrawingCall();
  DrawingCall(const DrawingCall&) = delete;
  DrawingCall& operator=(const DrawingCall&) = delete;

 private:
  const at::Generator* outer_;
};

} // namespace dtensor::detail
