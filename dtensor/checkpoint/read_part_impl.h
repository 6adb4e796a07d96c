// SPDX-License-Identifier: BSD-3-Clause
// One tensor of a checkpoint into the parts of those who load it.
#pragma once

#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/weights/weight_file.h>

#include <map>
#include <string>
#include <vector>

namespace dtensor::detail {

class PartReader {
 public:
  PartReader(
      const WeightFile& file,
      GroupPtr group,
      const LoadOptions& options);

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
  void read_rows(
      const WeightInfo& weight,
      const Share& share,
      const Interval& rows,
      const at::Tensor& out);
  void
  verify(const WeightInfo& weight, const Intervals& rows, const Share& share);
  GroupPtr group_of(const std::vector<int64_t>& ranks);

  const WeightFile& file_;
  GroupPtr group_;
  bool verify_;
  bool share_reading_;
  std::map<std::vector<int64_t>, GroupPtr> groups_;
  std::string damage_;
};

} // namespace dtensor::detail
