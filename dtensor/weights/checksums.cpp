// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/weights/checksums_impl.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace dtensor::detail {
namespace {

constexpr size_t kDigits = 16;

} // namespace

uint64_t checksum_of(const void* bytes, size_t count) {
  return XXH3_64bits(bytes, count);
}

struct BlockHasher::State {
  XXH3_state_t xxh3;
};

BlockHasher::BlockHasher() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh3);
}
BlockHasher::~BlockHasher() = default;

void BlockHasher::add(const void* bytes, size_t count) {
  const auto* from = static_cast<const std::byte*>(bytes);
  while (count > 0) {
    const auto some = std::min(count, kChecksumBlock - filled_);
    XXH3_64bits_update(&state_->xxh3, from, some);
    from += some;
    count -= some;
    filled_ += some;
    if (filled_ == kChecksumBlock) {
      done_.push_back(XXH3_64bits_digest(&state_->xxh3));
      XXH3_64bits_reset(&state_->xxh3);
      filled_ = 0;
    }
  }
}

std::vector<uint64_t> BlockHasher::take_checksums() {
  if (filled_ > 0) {
    done_.push_back(XXH3_64bits_digest(&state_->xxh3));
    XXH3_64bits_reset(&state_->xxh3);
    filled_ = 0;
  }
  return std::exchange(done_, {});
}

std::string checksum_text(const std::vector<uint64_t>& checksums) {
  std::string text;
  text.reserve(checksums.size() * kDigits);
  for (const auto checksum : checksums) {
    std::array<char, kDigits> digits{};
    const auto end =
        std::to_chars(digits.data(), digits.data() + kDigits, checksum, 16).ptr;
    text.append(kDigits - static_cast<size_t>(end - digits.data()), '0');
    text.append(digits.data(), end);
  }
  return text;
}

std::vector<uint64_t> parse_checksums(std::string_view text) {
  std::vector<uint64_t> checksums(text.size() / kDigits);
  for (size_t i = 0; i < checksums.size(); ++i) {
    const auto digits = text.substr(i * kDigits, kDigits);
    const auto* end = digits.data() + kDigits;
    if (std::from_chars(digits.data(), end, checksums[i], 16).ptr != end) {
      return {};
    }
  }
  return text.size() % kDigits == 0 ? checksums : std::vector<uint64_t>();
}

} // namespace dtensor::detail
