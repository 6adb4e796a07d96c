// SPDX-License-Identifier: BSD-3-Clause
// Philox-4x32-10: a block of four random words as a function of a counter and a
// key (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
// Computes the words of at::Philox4_32, without the state of an engine.
#pragma once

#include <array>
#include <cstdint>

namespace dtensor::detail {

using PhiloxBlock = std::array<uint32_t, 4>;

/// Returns the words of counter {block, stream} under key `seed`.
inline PhiloxBlock philox(uint64_t seed, uint64_t stream, uint64_t block) {
  constexpr uint64_t kMul0 = 0xD2511F53;
  constexpr uint64_t kMul1 = 0xCD9E8D57;
  auto key0 = static_cast<uint32_t>(seed);
  auto key1 = static_cast<uint32_t>(seed >> 32);
  PhiloxBlock c = {
      static_cast<uint32_t>(block),
      static_cast<uint32_t>(block >> 32),
      static_cast<uint32_t>(stream),
      static_cast<uint32_t>(stream >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMul0 * c[0];
    const uint64_t p1 = kMul1 * c[2];
    c = {
        static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key0,
        static_cast<uint32_t>(p1),
        static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key1,
        static_cast<uint32_t>(p0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return c;
}

} // namespace dtensor::detail
