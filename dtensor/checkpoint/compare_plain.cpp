// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/compare_plain_impl.h>

#include <dtensor/checkpoint/manifest_impl.h>
#include <dtensor/checkpoint/tensor_file_impl.h>
#include <dtensor/error.h>
#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/weights/checksums_impl.h>

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// Maximum number of bytes on the CPU at once.
constexpr int64_t kComparedBytes = int64_t{8} << 20;

std::string digest_of(const at::Tensor& t) {
  BlockHasher hasher;
  const auto rows = rows_of(t);
  const auto count = t.dim() == 0 ? 1 : t.size(0);
  const auto row_bytes = count == 0
      ? int64_t{1}
      : std::max<int64_t>(static_cast<int64_t>(t.nbytes()) / count, 1);
  const auto step = std::max<int64_t>(kComparedBytes / row_bytes, 1);
  for (int64_t begin = 0; begin < count; begin += step) {
    const auto slice = rows(begin, std::min(step, count - begin));
    hasher.add(slice.data_ptr(), slice.nbytes());
  }
  const auto blocks = hasher.take();
  return checksum_text(
      {checksum_of(blocks.data(), blocks.size() * sizeof(uint64_t))});
}

bool is_value(const CheckpointValue& value) {
  return !std::holds_alternative<at::Tensor>(value);
}

// Returns the ranks with a different value of item `i` than rank 0.
std::vector<size_t> ranks_that_differ(
    const std::vector<std::vector<std::string>>& digests,
    size_t i) {
  std::vector<size_t> ranks;
  for (size_t rank = 1; rank < digests.size(); ++rank) {
    if (digests[rank][i] != digests[0][i]) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

} // namespace

std::vector<std::string> digests_of(
    const std::vector<SavedTensor>& tensors,
    const CheckpointExtra& extra) {
  std::vector<std::string> digests;
  for (const auto& item : tensors) {
    if (!is_dtensor(item.tensor)) {
      digests.push_back(digest_of(item.tensor));
    }
  }
  for (const auto& [name, value] : extra) {
    if (is_value(value)) {
      digests.push_back(extra_text({{name, value}}));
    }
  }
  return digests;
}

std::vector<std::string> comparable_names(
    const std::vector<SavedTensor>& tensors,
    const CheckpointExtra& extra) {
  std::vector<std::string> names;
  for (const auto& item : tensors) {
    if (!is_dtensor(item.tensor)) {
      names.push_back(item.name);
    }
  }
  for (const auto& [name, value] : extra) {
    if (is_value(value)) {
      names.push_back(kExtraPrefix + name);
    }
  }
  return names;
}

std::vector<std::string> names_that_differ(
    const std::vector<std::string>& names,
    const std::vector<std::vector<std::string>>& digests,
    bool allows) {
  std::vector<std::string> different;
  std::vector<size_t> ranks; // for the first difference
  for (size_t i = 0; i < names.size(); ++i) {
    auto others = ranks_that_differ(digests, i);
    if (!others.empty()) {
      ranks = different.empty() ? std::move(others) : std::move(ranks);
      different.push_back(names[i]);
    }
  }
  DTENSOR_CHECK_VALUE(
      allows || different.empty(),
      "[{}] {} is not distributed and differs between ranks: {}{}{} other "
      "values than rank 0{}. Make it the same on all ranks "
      "(broadcast_buffers() for statistics of batch norms), or make it a "
      "DTensor, or save the values of rank 0 with allow_differences = true.",
      kSaveCheckpoint,
      different[0],
      ranks.size() == 1 ? "rank " : "ranks ",
      c10::Join(", ", ranks),
      ranks.size() == 1 ? " has" : " have",
      different.size() == 1
          ? std::string()
          : detail::format_text(
                " (further tensors that differ: {})", different.size() - 1));
  return different;
}

} // namespace dtensor::detail
