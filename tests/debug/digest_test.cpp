// SPDX-License-Identifier: BSD-3-Clause
// Digests of replicas do not depend on the processor.
#include <dtensor/debug/compare_replicas_impl.h>
#include <dtensor/debug/digest_avx2_impl.h>
#include <dtensor/weights/checksums_impl.h>

#include <vector>

namespace dtensor::detail {
namespace TEST_SOURCE {

TEST(Digest, IsTheSameHashOnEachProcessor) {
  std::vector<unsigned char> bytes(3'000'001);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<unsigned char>(i * i >> 3U);
  }
  const auto avx2 = avx2_digest();
  constexpr size_t kCounts[] = {
      0, 1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 1024, 1025, 3'000'000};
  for (const size_t count : kCounts) {
    // Not aligned to a vector.
    const auto expected = checksum_of(bytes.data() + 1, count);
    EXPECT_EQ(digest_bytes(bytes.data() + 1, count), expected) << count;
    if (avx2 != nullptr) {
      EXPECT_EQ(avx2(bytes.data() + 1, count), expected) << count;
    }
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor::detail
