// SPDX-License-Identifier: BSD-3-Clause
// Opens any bytes as the archive of an exported program, and any text as its
// table of weights. Expects an error that names the file, or readable weights.
#include <dtensor/weights/weight_file.h>

#include <algorithm>

#include "fuzz.h"
#include "read_all.h"
#include "tests/weights/zip_files.h"

namespace {

void open(const std::string& bytes) {
  using namespace dtensor;
  const fuzz::MemoryFile file(bytes.data(), bytes.size());
  fuzz::expect_only_errors(
      file.path(), [&] { fuzz::read_all(*open_weights(file.path())); });
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  using namespace dtensor::test_weights;
  const std::string input(reinterpret_cast<const char*>(bytes), count);
  if (input.starts_with("PK")) {
    open(input);
    return 0;
  }
  auto entries = program_entries(input, std::string(64, '\1'));
  if (count % 2 == 1) {
    entries[1].bytes = deflated(input);
    entries[1].unpacked = input;
    entries[1].is_compressed = true;
  }
  open(zip_of(entries));
  return 0;
}
