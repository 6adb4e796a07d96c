// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtensor::detail {

/// Returns the XXH3 hash of `count` bytes.
using DigestFunction = uint64_t (*)(const void* bytes, size_t count);

/// Returns a DigestFunction that uses AVX2; null if the processor has none.
DigestFunction avx2_digest();

} // namespace dtensor::detail
