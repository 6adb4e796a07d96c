// SPDX-License-Identifier: BSD-3-Clause
// Checksums of a tensor's bytes in a safetensors file. There is one checksum
// per block, so that a rank can check only the blocks that it reads. The
// checksums are in the header under __metadata__, beside the entries of other
// readers:
//
//   "DTENSOR_CHECKSUMS": {"block": 1048576, "xxh3": {"w1.weight": "9f31..."}}
//
// Each block has sixteen hexadecimal digits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// Key of the checksums, and bytes per block in files that this library writes.
constexpr const char* kChecksumsKey = "DTENSOR_CHECKSUMS";
constexpr size_t kChecksumBlock = size_t{1} << 20;

/// Returns the 64-bit XXH3 hash.
uint64_t checksum_of(const void* bytes, size_t count);

/// Computes the checksums of consecutive blocks from bytes that arrive in any
/// portions.
class BlockHasher {
 public:
  BlockHasher();
  ~BlockHasher();
  BlockHasher(const BlockHasher&) = delete;
  BlockHasher& operator=(const BlockHasher&) = delete;

  void add(const void* bytes, size_t count);
  std::vector<uint64_t> take_checksums();

 private:
  struct State;
  std::unique_ptr<State> state_;
  size_t filled_ = 0; // bytes in the current block
  std::vector<uint64_t> done_;
};

/// Converts checksums to text, sixteen digits each, and back. parse_checksums()
/// returns nothing for a malformed text.
std::string checksum_text(const std::vector<uint64_t>& checksums);
std::vector<uint64_t> parse_checksums(std::string_view text);

} // namespace dtensor::detail
