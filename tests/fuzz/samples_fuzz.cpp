// SPDX-License-Identifier: BSD-3-Clause
// Any bytes as the pickle of sample inputs: LibTorch's reader gets what has no
// problem, and ends with a value or an error.
#include <dtensor/program/pickle_shape_impl.h>

#include "fuzz.h"

#include <torch/csrc/jit/serialization/unpickler.h>

#include <algorithm>
#include <cstring>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  const std::string_view pickle(reinterpret_cast<const char*>(bytes), count);
  if (!dtensor::detail::pickle_problem(pickle).empty()) {
    return 0;
  }
  size_t at = 0;
  const auto read = [&](char* to, size_t wanted) {
    const auto taken = std::min(wanted, count - at);
    std::memcpy(to, bytes + at, taken);
    at += taken;
    return taken;
  };
  try {
    torch::jit::Unpickler(read, /*type_resolver=*/nullptr, {}).parse_ivalue();
  } catch (const std::exception&) { // c10::Error, or of an empty resolver
  }
  return 0;
}
