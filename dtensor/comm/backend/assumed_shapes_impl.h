// SPDX-License-Identifier: BSD-3-Clause
// AssumedShapes: the global shapes that a rank assumed since its group's last
// collective.
//
// DTensor::from_local without a shape assumes that all ranks' shards have the
// size of this rank's shard. The assumption is local and costs no collective,
// so ranks with shards of different sizes do not notice. The next collective of
// the group compares the assumptions of all ranks.
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

/// Assumption about one tensor, as messages report it. It holds no mesh: a mesh
/// would keep the group alive, and the group keeps this object.
struct AssumedShape {
  Sizes sizes;
  Sizes local_sizes;
  Placements placements;
  at::ScalarType dtype = at::kFloat;
  std::string_view module = {}; // module with this input, if any
  friend bool operator==(const AssumedShape&, const AssumedShape&) = default;
};

/// Attributes the entries that this thread adds to AssumedShapes to `tensor`.
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
  /// Assumptions of another rank.
  AssumedShapes(uint64_t hash, uint64_t count, std::vector<AssumedShape> first)
      : hash_(hash),
        count_(count),
        first_(std::move(first)) {}

  void add(const Spec& spec);
  void clear() {
    *this = {};
  }
  /// Records that all ranks have thrown an error about these assumptions.
  void mark_reported() {
    is_reported_ = true;
  }
  /// After mark_reported(), drops tensors that no longer exist: ranks that
  /// caught the error and released the tensors can go on.
  void drop_reported_expired() {
    if (is_reported_) {
      drop_expired();
    }
  }
  bool empty() const {
    return count_ == 0;
  }
  /// Returns true if both ranks made the same tensors in the same order,
  /// wherever their shards were.
  bool agrees_with(const AssumedShapes& other) const {
    return count_ == other.count_ && hash_ == other.hash_;
  }
  uint64_t hash() const {
    return hash_;
  }
  uint64_t count() const {
    return count_;
  }
  /// Tensors in order, at most the first 64.
  const std::vector<AssumedShape>& first() const {
    return first_;
  }

 private:
  // State that a DTensor shares with its copies.
  using WeakTensor = c10::weak_intrusive_ptr<c10::BackendMeta>;
  friend class AssumedTensor;

  void note(AssumedShape shape, WeakTensor tensor);
  void drop_expired();

  uint64_t hash_ = 0;
  uint64_t count_ = 0;
  std::vector<AssumedShape> first_;
  std::vector<WeakTensor> tensors_; // of first_
  bool is_reported_ = false;
};

/// Returns why the members' assumptions contradict each other. Returns nullopt
/// if there is no contradiction, or if the calls do not `fit` and this mismatch
/// explains the error better. The text is equal on every rank.
std::optional<std::string> contradiction(
    const std::vector<const Call*>& calls,
    const std::vector<int64_t>& ranks,
    const std::string& label,
    bool fit);

} // namespace dtensor::detail
