// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/group/operator_errors_impl.h>

#include <dtensor/comm/rank/rank_local_impl.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace dtensor::detail {
namespace {

/// A rank's errors, and the backends of its groups. Threads that run backward
/// nodes of the rank use the object, too.
class OperatorErrors {
 public:
  void note(std::vector<int64_t> ranks, const std::string& text) {
    std::ranges::sort(ranks);
    const std::lock_guard lock(mutex_);
    ++by_mesh_[ranks];
    ++count_;
    last_ = text;
    std::erase_if(backends_, [](const auto& weak) { return weak.expired(); });
    for (const auto& weak : backends_) {
      const GroupBackendPtr backend = weak.lock();
      if (backend != nullptr && is_within(ranks, *backend)) {
        tell(*backend);
      }
    }
  }

  void add(const GroupBackendPtr& backend) {
    const std::lock_guard lock(mutex_);
    if (count_ > 0) {
      tell(*backend);
    }
    backends_.emplace_back(backend);
  }

  int64_t count() const {
    return count_;
  }

 private:
  static bool is_within(
      const std::vector<int64_t>& sorted,
      const GroupBackend& backend) {
    return std::ranges::all_of(backend.members().ranks, [&](int64_t rank) {
      return std::ranges::binary_search(sorted, rank);
    });
  }

  // Backends of equal ranks may share their state, so they get totals.
  void tell(GroupBackend& backend) const {
    int64_t total = 0;
    for (const auto& [ranks, count] : by_mesh_) {
      total += is_within(ranks, backend) ? count : 0;
    }
    backend.set_errors(total, last_);
  }

  std::mutex mutex_;
  /// Numbers of errors by the mesh's ranks, which are sorted.
  std::map<std::vector<int64_t>, int64_t> by_mesh_;
  std::string last_;
  std::vector<std::weak_ptr<GroupBackend>> backends_;
  std::atomic<int64_t> count_{0};
};

RankLocal<OperatorErrors> operator_errors;

} // namespace

void note_error(const std::vector<int64_t>& ranks, const std::string& text) {
  operator_errors.get().note(ranks, text);
}

int64_t noted_errors() {
  return operator_errors.get().count();
}

void pass_errors_to(const GroupBackendPtr& backend) {
  operator_errors.get().add(backend);
}

} // namespace dtensor::detail
