// SPDX-License-Identifier: BSD-3-Clause
// AssumedShapes: the global shapes that a rank took for granted since its
// group last met.
//
// DTensor::from_local without a shape takes every shard to be as large as its
// own. That is local and costs no collective, so ranks whose shards differ in
// size do not notice; they do when they next meet, where each compares its
// notes with those of the others.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/spec.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dtensor::detail {

struct Call;

/// One tensor: what a message says of it. It holds no mesh, which would keep
/// the group alive that keeps these.
struct AssumedShape {
  Sizes sizes;
  Sizes local_sizes;
  Placements placements;
  at::ScalarType dtype = at::kFloat;
  std::string_view module = {}; // whose input it is, if any
  friend bool operator==(const AssumedShape&, const AssumedShape&) = default;
};

/// While it lives, what this thread adds to AssumedShapes is noted of `tensor`.
class AssumedTensor {
 public:
  explicit AssumedTensor(const at::Tensor& tensor);
  ~AssumedTensor();
  AssumedTensor(const AssumedTensor&) = delete;
  AssumedTensor& operator=(const AssumedTensor&) = delete;
};

class AssumedShapes {
 public:
  AssumedShapes() = default;
  /// What another rank noted.
  AssumedShapes(uint64_t hash, uint64_t count, std::vector<AssumedShape> first)
      : hash_(hash),
        count_(count),
        first_(std::move(first)) {}

  void add(const Spec& spec);
  void clear();
  /// Says that all ranks have thrown a contradiction of these.
  void mark_told() {
    is_told_ = true;
  }
  /// Of those that were told, drops the tensors that no longer exist: ranks
  /// that caught the error and let go of them can go on.
  void forget_ended() {
    if (is_told_) {
      drop_ended();
    }
  }
  bool empty() const {
    return count_ == 0;
  }
  /// Whether both made the same tensors in the same order, wherever their
  /// shards were.
  bool agrees_with(const AssumedShapes& other) const {
    return count_ == other.count_ && hash_ == other.hash_;
  }
  uint64_t hash() const {
    return hash_;
  }
  uint64_t count() const {
    return count_;
  }
  /// The tensors, but no more than the first 64.
  const std::vector<AssumedShape>& first() const {
    return first_;
  }

 private:
  // The state that a DTensor shares with its copies.
  using WeakTensor = c10::weak_intrusive_ptr<c10::BackendMeta>;
  friend class AssumedTensor;

  void note(AssumedShape shape, WeakTensor tensor);
  void drop_ended();

  uint64_t hash_ = 0;
  uint64_t count_ = 0;
  std::vector<AssumedShape> first_;
  std::vector<WeakTensor> tensors_; // of first_
  bool is_told_ = false;
};

/// Why the members took different things for granted; nothing if they did not,
/// or if the calls do not `fit` and that is the better explanation. The text is
/// the same on every rank.
std::optional<std::string> contradiction(
    const std::vector<const Call*>& calls,
    const std::vector<int64_t>& ranks,
    const std::string& label,
    bool fit);

} // namespace dtensor::detail
