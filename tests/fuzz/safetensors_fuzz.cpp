// SPDX-License-Identifier: BSD-3-Clause
// Any bytes as a file of safetensors: an error that names the file, or weights
// that can be read.
#include <dtensor/weights/weight_file.h>

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  using namespace dtensor;
  const fuzz::MemoryFile file(bytes, count);
  fuzz::expect_only_errors(file.path(), [&] {
    const auto weights = open_weights(file.path());
    for (const auto& weight : weights->weights()) {
      weights->read(weight.name);
    }
  });
  return 0;
}
