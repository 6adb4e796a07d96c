// SPDX-License-Identifier: BSD-3-Clause
// RankNotes: events on a rank that must have happened on all ranks of a group.
// The group's next collective compares the notes of all ranks.
//
// - Assumed shapes. DTensor::from_local without a shape assumes that all ranks'
//   shards have the size of this rank's shard. The assumption is local and
//   costs no collective, so ranks with shards of different sizes do not notice.
// - Errors of operators (comm/group/operator_errors_impl.h). If a rank catches
//   an error that other ranks do not have, its next collective would pair with
//   a collective of that operator.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/spec.h>

#include <algorithm>
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

/// Attributes the entries that this thread adds to RankNotes to `tensor`.
class AssumedTensor {
 public:
  explicit AssumedTensor(const at::Tensor& tensor);
  ~AssumedTensor();
  AssumedTensor(const AssumedTensor&) = delete;
  AssumedTensor& operator=(const AssumedTensor&) = delete;
};

class RankNotes {
 public:
  RankNotes() = default;
  /// Notes of another rank.
  RankNotes(
      uint64_t hash,
      uint64_t count,
      std::vector<AssumedShape> first,
      uint64_t errors,
      std::string last_error)
      : hash_(hash),
        count_(count),
        first_(std::move(first)),
        errors_(errors),
        last_error_(std::move(last_error)) {}

  void add(const Spec& spec);
  void set_errors(int64_t total, const std::string& last) {
    errors_ = static_cast<uint64_t>(total);
    last_error_ = last;
  }
  /// Records that all ranks have equal notes. Drops the tensors.
  void clear() {
    take_tensors();
    note_agreement(*this);
  }
  /// Records that all ranks have as many errors as `compared`, an earlier copy.
  void note_agreement(const RankNotes& compared) {
    agreed_errors_ = std::max(agreed_errors_, compared.errors_);
  }
  /// Returns a copy, and drops the tensors.
  RankNotes take_tensors();
  /// Takes the tensors of an earlier copy back, unless there are newer ones.
  void restore_tensors(const RankNotes& copy);
  /// Records that all ranks have thrown an error about these notes.
  void mark_reported() {
    is_reported_ = count_ > 0;
  }
  /// After mark_reported(), drops tensors that no longer exist: ranks that
  /// caught the error and released the tensors can go on.
  void drop_reported_expired() {
    if (is_reported_) {
      drop_expired();
    }
  }
  bool empty() const {
    return count_ == 0 && errors_ == 0;
  }
  /// Returns false if all ranks are known to have equal notes.
  bool must_be_compared() const {
    return count_ > 0 || errors_ != agreed_errors_;
  }
  /// Returns true if both ranks made the same tensors in the same order,
  /// wherever their shards were, and had equally many errors.
  bool agrees_with(const RankNotes& other) const {
    return count_ == other.count_ && hash_ == other.hash_ &&
        errors_ == other.errors_;
  }
  uint64_t hash() const {
    return hash_;
  }
  uint64_t count() const {
    return count_;
  }
  /// Number of errors so far, and the text of the last one.
  uint64_t errors() const {
    return errors_;
  }
  const std::string& last_error() const {
    return last_error_;
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
  uint64_t errors_ = 0;
  uint64_t agreed_errors_ = 0; // that all ranks have
  std::string last_error_;
  bool is_reported_ = false;
};

/// Returns why the members' notes contradict each other. Returns nullopt if
/// there is no contradiction, or if the calls do not `fit` and this mismatch
/// explains the error better. The text is equal on every rank.
std::optional<std::string> contradiction(
    const std::vector<const Call*>& calls,
    const std::vector<int64_t>& ranks,
    const std::string& label,
    bool fit);

} // namespace dtensor::detail
