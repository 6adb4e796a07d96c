// SPDX-License-Identifier: BSD-3-Clause
// Checksums of a tensor's bytes in a safetensors file, one for each block, so
// that a rank checks the blocks that it reads. They stand in the header, under
// __metadata__, beside what other readers know:
//
//   "DTENSOR_CHECKSUMS": {"block": 1048576, "xxh3": {"w1.weight": "9f31..."}}
//
// with sixteen hexadecimal digits a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// Where they are, and how many bytes our own files have in a block.
constexpr const char* kChecksumsKey = "DTENSOR_CHECKSUMS";
constexpr size_t kChecksumBlock = size_t{1} << 20;

/// XXH3 of 64 bits.
uint64_t checksum_of(const void* bytes, size_t count);

/// The checksums of the blocks of bytes that come in pieces of any size.
class BlockHasher {
 public:
  BlockHasher();
  ~BlockHasher();
  BlockHasher(const BlockHasher&) = delete;
  BlockHasher& operator=(const BlockHasher&) = delete;

  void add(const void* bytes, size_t count);
  std::vector<uint64_t> take();

 private:
  struct State;
  std::unique_ptr<State> state_;
  size_t filled_ = 0; // of the block that is begun
  std::vector<uint64_t> done_;
};

/// Sixteen digits each, and the way back: none for what is no such text.
std::string checksum_text(const std::vector<uint64_t>& checksums);
std::vector<uint64_t> parse_checksums(std::string_view text);

} // namespace dtensor::detail
