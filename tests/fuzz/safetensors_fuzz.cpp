// SPDX-License-Identifier: BSD-3-Clause
// Opens any text as the header of a safetensors file, followed by the bytes
// after its first zero byte, and the full input as a file. Expects an error
// that names the file, or readable weights.
#include <dtensor/weights/weight_file.h>

#include <algorithm>

#include "fuzz.h"
#include "read_all.h"

namespace {

void open(const std::string& bytes) {
  using namespace dtensor;
  const fuzz::MemoryFile file(bytes.data(), bytes.size());
  fuzz::expect_only_errors(
      file.path(), [&] { fuzz::read_all(*open_weights(file.path())); });
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  const std::string input(reinterpret_cast<const char*>(bytes), count);
  open(input);
  const auto header = input.substr(0, input.find('\0'));
  const uint64_t length = header.size();
  open(
      std::string(reinterpret_cast<const char*>(&length), sizeof(length)) +
      header + input.substr(std::min(count, header.size() + 1)));
  return 0;
}
