// SPDX-License-Identifier: BSD-3-Clause
// Transport of keys and values to every rank of a group, and of their gradients
// back. A block is the keys and values of one rank. In step 0, a rank uses its
// own block. In step i, it uses the block of the rank i places before it.
//
// A block is sent as one buffer, keys then values, each row-major. The next
// block is in flight while the current block is used.
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

/// Shapes of all blocks: the shapes of `mine`, but with lengths[r] for rank r.
class BlockShapes {
 public:
  BlockShapes(const Group& group, const KeyValue& mine, SizesRef lengths);

  /// Returns the rank that owns the block that this rank uses in `step`.
  int64_t owner(int64_t step) const;
  /// Number of elements of each rank's block.
  SizesRef counts() const {
    return counts_;
  }
  /// Element counts of the all-to-all in which every rank passes its block of
  /// `step` to the next rank.
  Sizes sent(int64_t step) const;
  Sizes received(int64_t step) const;
  /// Returns views of keys and values in the buffer of `rank`'s block.
  KeyValue views(const at::Tensor& buffer, int64_t rank) const;
  /// Like views(), for a buffer of all ranks' blocks in rank order.
  KeyValue views_among_all(const at::Tensor& all, int64_t rank) const;

 private:
  int64_t ranks_;
  int64_t me_;
  Sizes key_;
  Sizes value_;
  Sizes lengths_;
  Sizes counts_;
};

/// Source of all ranks' blocks.
class KeyValueSource {
 public:
  virtual ~KeyValueSource() = default;
  /// Returns the block of `step`. Call this function once for each of 0, 1, ...
  virtual KeyValue take_block(int64_t step) = 0;
};
std::unique_ptr<KeyValueSource> key_value_source(
    Group& group,
    const BlockShapes& shapes,
    const KeyValue& mine,
    RotateMethod method);

/// Sink for gradients of all blocks. Sums them over ranks and returns each sum
/// to the block's owner. Accumulates in the dtype of `options`.
class KeyValueSink {
 public:
  virtual ~KeyValueSink() = default;
  /// Returns the buffer to which this rank adds its gradients of the block of
  /// `step`. Waits for the sums of earlier ranks, so call this function as late
  /// as possible.
  virtual KeyValue at(int64_t step) = 0;
  /// Ends `step`, after all additions. Call this function once for each of 0,
  /// 1, ...
  virtual void end(int64_t step) = 0;
  /// Returns the gradients of this rank's own block.
  virtual KeyValue own_gradients() = 0;
};
std::unique_ptr<KeyValueSink> key_value_sink(
    Group& group,
    const BlockShapes& shapes,
    const at::TensorOptions& options,
    RotateMethod method);

} // namespace dtensor::detail
