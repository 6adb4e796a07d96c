// SPDX-License-Identifier: BSD-3-Clause
// Random numbers of plain tensors on ranks whose local shards differ in size.
//
// A random operator takes as many numbers from the generator as its tensor has
// elements. Ranks with shards of different sizes would take different amounts,
// and would draw different numbers for replicated tensors afterwards. Once the
// program has been handed such shards, a call of a random operator takes one
// number from the rank's generator and draws from another generator, seeded by
// that number. Only the number of calls counts, which is the same on all ranks.
//
//   auto h = dropout(q(x));   // 2, 2 and 0 heads on three ranks
//   auto y = dropout(o(h));   // the same on all three
//
// Operators that make or overwrite a tensor (randn, normal_) draw as ever while
// the program has no uneven shard in use, so a training loop gets the batches
// that it gets on one rank.
#pragma once

#include <ATen/core/Generator.h>
#include <dtensor/comm/rank_local_impl.h>
#include <dtensor/layout/spec.h>

#include <cstdint>

namespace dtensor::detail {

/// Kinds of random operators.
enum class DrawKind {
  kMakes,   // makes a tensor of given sizes, or overwrites one: randn, normal_
  kReads,   // draws for the elements of a tensor: dropout, rand_like
  kByValue, // reads, and draws as often as values ask for: poisson, rrelu
};

/// Local tensors that the program of this rank has been handed.
struct HandedOut {
  /// Of any layout that differs between ranks.
  bool shards = false;
  /// Of a layout whose shards differ in size, since the last seeding.
  bool uneven = false;
  /// One of those, and no replicated tensor after it had been taken back.
  bool in_use = false;
  /// An uneven shard has become a part of a DTensor again.
  bool taken_back = false;
  uint64_t seedings = 0;
  /// Id of a spec that would change nothing here.
  uint64_t known_spec = 0;
};

extern RankLocal<HandedOut> handed_out;

void note_other_tensor(const Spec& spec, HandedOut& mine);
void note_tensor_back(const Spec& spec, HandedOut& mine);

/// Notes that the program is handed this rank's tensor of `spec`, plain.
inline void note_handed_out(const Spec& spec) {
  HandedOut& mine = handed_out.get();
  if (spec.id() != mine.known_spec) {
    note_other_tensor(spec, mine);
  }
}

/// The same for plain tensors that are shards of no spec.
void note_shards(bool uneven);

/// Notes that a plain tensor of the program became a DTensor of `spec`.
inline void note_taken_back(const Spec& spec) {
  HandedOut& mine = handed_out.get();
  if (mine.in_use && !mine.taken_back) {
    note_tensor_back(spec, mine);
  }
}

/// Puts back what the rank was handed before, unless the rank has been seeded:
/// for local tensors that do not outlive the scope.
class HandedOutScope {
 public:
  HandedOutScope() : before_(handed_out.get()) {}
  ~HandedOutScope();
  HandedOutScope(const HandedOutScope&) = delete;
  HandedOutScope& operator=(const HandedOutScope&) = delete;

 private:
  HandedOut before_;
};

/// Lets all operators draw as ever, as after a seeding.
void end_uneven_draws();

/// What get_state() keeps of it, and set_state() brings back.
uint8_t draw_flags();
void set_draw_flags(uint8_t flags);

/// Whether a call of an operator of that kind takes one number.
bool takes_one_number(DrawKind kind);

/// Takes one number from this rank's generator. Returns a generator seeded by
/// that number, which the next call of this function seeds again.
const at::Generator& generator_of_call();

/// While the outermost lives, this thread is in one call of a random operator
/// on plain tensors. If such a call takes one number, operators draw from the
/// generator that the number seeds.
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
