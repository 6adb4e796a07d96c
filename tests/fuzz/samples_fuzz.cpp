// SPDX-License-Identifier: BSD-3-Clause
// Reads any bytes as the pickle of sample inputs. A pickle without a reported
// problem goes to LibTorch's reader, which must return a value or throw.
#include <dtensor/program/sample_inputs_impl.h>

#include "fuzz.h"

#include <torch/csrc/jit/serialization/unpickler.h>

#include <algorithm>
#include <cstring>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  const std::string_view pickle(reinterpret_cast<const char*>(bytes), count);
  if (!dtensor::detail::pickle_problem(pickle, {}).empty()) {
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
  } catch (const std::exception&) { // also from an empty resolver
  }
  return 0;
}
