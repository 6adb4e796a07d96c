// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/shared_memory/shown_results_impl.h>

#include <algorithm>
#include <cstring>

namespace dtensor::detail {
namespace {

constexpr int64_t kNone = -1;

} // namespace

void PeerResults::show(const SharedArena& arena, const at::Tensor& result)
    const {
  const int64_t offset = result.defined() ? arena.offset(result) : kNone;
  std::memcpy(notice(channel_.rank()), &offset, sizeof(offset));
}

void PeerResults::find() {
  for (int64_t member = 0; member < channel_.size(); ++member) {
    int64_t offset = 0;
    std::memcpy(&offset, notice(member), sizeof(offset));
    all_.push_back(
        offset == kNone ? nullptr : channel_.layout().arena(member) + offset);
  }
}

bool PeerResults::all_in_arenas() const {
  return std::ranges::all_of(
      all_, [](const std::byte* result) { return result != nullptr; });
}

} // namespace dtensor::detail
