// SPDX-License-Identifier: BSD-3-Clause
// Opens any bytes as a GGUF file. Expects an error that names the file, or
// readable weights.
#include <dtensor/weights/weight_file.h>

#include "fuzz.h"
#include "read_all.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  using namespace dtensor;
  std::string file_bytes(reinterpret_cast<const char*>(bytes), count);
  file_bytes.replace(0, std::min<size_t>(count, 4), "GGUF");
  const fuzz::MemoryFile file(file_bytes.data(), file_bytes.size());
  fuzz::expect_only_errors(
      file.path(), [&] { fuzz::read_all(*open_weights(file.path())); });
  return 0;
}
