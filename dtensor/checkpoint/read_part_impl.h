// SPDX-License-Identifier: BSD-3-Clause
// PartReader: reads tensors of a checkpoint into local shards.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/weights/weight_contents_impl.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace dtensor::detail {

class PartReader {
 public:
  PartReader(
      const WeightFile& file,
      GroupPtr group,
      const LoadOptions& options);

  /// Verifies the checksums of the bytes that read() would read, without
  /// communication. Does nothing without `verify`.
  void check(const std::string& name, const at::Tensor& target);

  /// Reads the weight `name` into `target`, a DTensor or a plain tensor with
  /// the shape of the weight. If several ranks hold a large local shard, each
  /// reads a slice: all of these ranks must call read().
  void read(const std::string& name, const at::Tensor& target);

  /// Returns a description of the first damaged bytes found; "" if there are
  /// none.
  const std::string& damage() const {
    return damage_;
  }

 private:
  struct Share;
  Share share_of(const at::Tensor& target);
  Share share_of_plain(const at::Tensor& target);
  bool is_shared(const at::Tensor& local) const;
  template <class Fn>
  void
  for_each_slice(const WeightInfo& weight, const Share& share, const Fn& fn);
  void
  verify(const WeightInfo& weight, const Intervals& rows, const Share& share);
  void verify_block(
      const WeightInfo& weight,
      const StoredPiece& piece,
      int64_t block);
  GroupPtr group_of(const std::vector<int64_t>& ranks);

  const WeightFile& file_;
  GroupPtr group_;
  bool verify_;
  bool share_reading_;
  std::map<std::vector<int64_t>, GroupPtr> groups_;
  // Files that verify() has read since pages were last released.
  std::set<const MappedFile*> touched_;
  int64_t touched_bytes_ = 0;
  std::string damage_;
};

/// A check for tensors of the model that a checkpoint holds under two names,
/// for example because the saved model did not share the weight. Both values
/// must be equal.
class DuplicateWeights {
 public:
  void add(std::string first, std::string again, at::Tensor target) {
    pairs_.push_back({std::move(first), std::move(again), std::move(target)});
  }
  /// Reads and compares both values of each pair. All ranks must call it.
  void compare(PartReader& reader);
  /// Throws ValueError if this rank found different values.
  void check() const;

 private:
  struct Pair {
    std::string first;
    std::string again;
    at::Tensor target;
  };
  std::vector<Pair> pairs_;
  std::vector<std::string> differing_;
};

/// Returns an uninitialized tensor like `target`, which may be on the meta
/// device.
at::Tensor empty_like_target(const at::Tensor& target);

} // namespace dtensor::detail
