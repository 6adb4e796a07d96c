// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/group/operator_errors_impl.h>

#include <dtensor/comm/rank/rank_local_impl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace dtensor::detail {
namespace {

// Returns true if the backend's group is within the sorted ranks.
bool is_within(
    const std::vector<int64_t>& sorted,
    const GroupBackend& backend) {
  return std::ranges::all_of(backend.members().ranks, [&](int64_t rank) {
    return std::ranges::binary_search(sorted, rank);
  });
}

thread_local std::vector<int64_t> common_ranks;

struct Errors {
  int64_t total = 0;
  int64_t last_number = 0; // among all errors of this rank
  std::string last;
};

/// A rank's errors, and the backends of its groups. Threads that run backward
/// nodes of the rank use the object, too.
class OperatorErrors {
 public:
  void note(NotedError error) {
    std::ranges::sort(error.mesh_ranks);
    std::ranges::sort(error.ranks_with_error);
    std::vector<GroupBackendPtr> groups;
    {
      const std::lock_guard lock(mutex_);
      auto& same = errors_[{error.mesh_ranks, error.ranks_with_error}];
      ++same.total;
      same.last_number = ++count_;
      same.last = error.text;
      drop_expired();
      for (const auto& weak : backends_) {
        groups.push_back(weak.lock());
      }
    }
    for (const GroupBackendPtr& group : groups) {
      if (group != nullptr) {
        pass_to(*group);
      }
    }
  }

  void add(const GroupBackendPtr& backend) {
    {
      const std::lock_guard lock(mutex_);
      drop_expired();
      backends_.emplace_back(backend);
    }
    pass_to(*backend);
  }

 private:
  void drop_expired() {
    std::erase_if(backends_, [](const auto& weak) { return weak.expired(); });
  }

  // Passes totals, because several backends may share the state of a group.
  void pass_to(GroupBackend& backend) {
    Errors all;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [ranks, errors] : errors_) {
        if (is_within(ranks.first, backend) &&
            !is_within(ranks.second, backend)) {
          all.total += errors.total;
          if (errors.last_number > all.last_number) {
            all.last_number = errors.last_number;
            all.last = errors.last;
          }
        }
      }
    }
    if (all.total > 0) {
      backend.set_operator_errors(all.total, all.last);
    }
  }

  std::mutex mutex_;
  /// By the sorted ranks of the mesh and of the group with the error.
  std::map<std::pair<std::vector<int64_t>, std::vector<int64_t>>, Errors>
      errors_;
  int64_t count_ = 0;
  std::vector<std::weak_ptr<GroupBackend>> backends_;
};

RankLocal<OperatorErrors> operator_errors;

} // namespace

constinit thread_local ErrorCounts error_counts;

void note_common_error(const std::vector<int64_t>& ranks) {
  ++error_counts.common;
  common_ranks = ranks;
}

const std::vector<int64_t>& last_common_ranks() {
  return common_ranks;
}

void note_error(NotedError error) {
  ++error_counts.noted;
  operator_errors.get().note(std::move(error));
}

void pass_errors_to(const GroupBackendPtr& backend) {
  operator_errors.get().add(backend);
}

} // namespace dtensor::detail
