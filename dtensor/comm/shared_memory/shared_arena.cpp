// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/shared_memory/shared_arena_impl.h>

#include <c10/core/Allocator.h>
#include <dtensor/comm/rank/rank_memory_impl.h>
#include <dtensor/error.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace dtensor::detail {

SharedArena::SharedArena(
    std::shared_ptr<const SharedSegment> segment,
    std::byte* begin,
    int64_t bytes)
    : segment_(std::move(segment)),
      begin_(begin),
      bytes_(bytes),
      free_{{begin, bytes}} {}

at::Tensor SharedArena::empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  constexpr int64_t kPageBytes = 4096;
  const size_t needed = bytes_of(sizes, c10::elementSize(dtype));
  if (needed > static_cast<size_t>(bytes_)) {
    return {};
  }
  const auto bytes =
      (static_cast<int64_t>(needed) + kPageBytes - 1) / kPageBytes * kPageBytes;
  std::byte* const data = take_block(bytes);
  if (data == nullptr) {
    return {};
  }
  return tensor_in(
      c10::InefficientStdFunctionContext::makeDataPtr(
          data,
          [self = shared_from_this(), data, bytes](void*) {
            self->give_back(data, bytes);
          },
          at::kCPU),
      needed,
      sizes,
      dtype);
}

// First fit: the block freed last is usually at the front and still in the
// caches.
std::byte* SharedArena::take_block(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto block = free_.begin(); block != free_.end(); ++block) {
    const auto [begin, length] = *block;
    if (length >= bytes) {
      free_.erase(block);
      if (length > bytes) {
        free_.emplace(begin + bytes, length - bytes);
      }
      return begin;
    }
  }
  return nullptr;
}

void SharedArena::give_back(std::byte* begin, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto block = free_.emplace(begin, bytes).first;
  const auto next = std::next(block);
  if (next != free_.end() && begin + bytes == next->first) {
    block->second += next->second;
    free_.erase(next);
  }
  if (block != free_.begin()) {
    const auto before = std::prev(block);
    if (before->first + before->second == begin) {
      before->second += block->second;
      free_.erase(block);
    }
  }
}

namespace {

constexpr int64_t kNone = -1;

} // namespace

void PeerResults::show(const SharedArena& arena, const at::Tensor& result)
    const {
  const int64_t offset = result.defined() ? arena.offset(result) : kNone;
  std::memcpy(notice(channel_.rank()), &offset, sizeof(offset));
}

void PeerResults::find(int64_t bytes) {
  for (int64_t member = 0; member < channel_.size(); ++member) {
    int64_t offset = 0;
    std::memcpy(&offset, notice(member), sizeof(offset));
    DTENSOR_CHECK(
        offset >= kNone && offset <= kArenaBytes - bytes,
        "[shared_memory_backend] {} sent an invalid offset of a result of {} "
        "bytes: {}. Run the same program on all ranks.",
        channel_.rank_text(member),
        bytes,
        offset);
    all_.push_back(
        offset == kNone ? nullptr : channel_.layout().arena(member) + offset);
  }
}

bool PeerResults::all_in_arenas() const {
  return std::ranges::all_of(
      all_, [](const std::byte* result) { return result != nullptr; });
}

} // namespace dtensor::detail
