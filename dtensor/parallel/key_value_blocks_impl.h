// SPDX-License-Identifier: BSD-3-Clause
// How the keys and values of all ranks come by a rank, and how gradients get
// back to theirs. A block is what one rank holds; in step i a rank has that of
// the rank i places before it, itself at first.
//
// A block travels as one buffer, keys then values, each row-major. While one is
// being used the next is under way.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/group.h>
#include <dtensor/parallel/context_parallel.h>

#include <memory>

namespace dtensor::detail {

/// Keys and values, or their gradients: (B, K, S, E) and (B, K, S, V).
struct KeyValue {
  at::Tensor key;
  at::Tensor value;
};

/// The shapes of all blocks: those of `mine`, with lengths[r] of rank r.
class BlockShapes {
 public:
  BlockShapes(const Group& group, const KeyValue& mine, SizesRef lengths);

  /// Whose block this rank has in `step`.
  int64_t owner(int64_t step) const;
  /// Elements of each rank's block.
  SizesRef counts() const {
    return counts_;
  }
  /// The counts of an exchange in which every rank gives its block of `step` to
  /// the next one.
  Sizes sent(int64_t step) const;
  Sizes received(int64_t step) const;
  /// The block of `rank` in its buffer.
  KeyValue views(const at::Tensor& buffer, int64_t rank) const;

 private:
  int64_t ranks_;
  int64_t me_;
  Sizes key_;
  Sizes value_;
  Sizes lengths_;
  Sizes counts_;
};

/// Brings a rank the blocks of all.
class KeyValueSource {
 public:
  virtual ~KeyValueSource() = default;
  /// The block of `step`: 0, 1, ... once each.
  virtual KeyValue take(int64_t step) = 0;
};
std::unique_ptr<KeyValueSource> key_value_source(
    Group& group,
    const BlockShapes& shapes,
    const KeyValue& mine,
    RotateMethod method);

/// Brings the gradients of blocks to their owners, who get the sum over all
/// ranks. In the dtype in which sums are made.
class KeyValueSink {
 public:
  virtual ~KeyValueSink() = default;
  /// Where this rank adds its gradients of the block of `step`. Waits for what
  /// ranks before it have added, so it is asked as late as can be.
  virtual KeyValue at(int64_t step) = 0;
  /// There is no more to add in `step`: 0, 1, ... once each.
  virtual void end(int64_t step) = 0;
  /// The gradients of this rank's own block.
  virtual KeyValue take() = 0;
};
std::unique_ptr<KeyValueSink> key_value_sink(
    Group& group,
    const BlockShapes& shapes,
    const at::TensorOptions& options,
    RotateMethod method);

} // namespace dtensor::detail
