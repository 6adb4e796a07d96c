// SPDX-License-Identifier: BSD-3-Clause
// One tensor of a checkpoint into the parts of those who load it.
#pragma once

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

  /// Compares the checksums of what read() reads, for which it changes nothing
  /// and waits for nobody. None without `verify`.
  void check(const std::string& name, const at::Tensor& target);

  /// Reads the weight `name` to `target`, a DTensor or a plain tensor of its
  /// shape. Who has a part that others have too reads a share of it, if it is
  /// large: all of them call it.
  void read(const std::string& name, const at::Tensor& target);

  /// What was wrong with bytes so far, the first of it; empty if nothing was.
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
  std::set<const MappedFile*> touched_; // by verify(), since it let pages go
  int64_t touched_bytes_ = 0;
  std::string damage_;
};

} // namespace dtensor::detail
