// SPDX-License-Identifier: BSD-3-Clause
// Parses any bytes as the text of a layout. Expects an error, or a layout that
// is equal after printing and parsing.
#include <dtensor/layout/text.h>

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  using namespace dtensor;
  const std::string_view text(reinterpret_cast<const char*>(bytes), count);
  fuzz::expect_only_errors("[", [&] {
    const auto spec = parse_spec(text).spec();
    const auto printed = to_string(*spec);
    if (to_string(*parse_spec(printed).spec()) != printed) {
      fuzz::fail("a layout that does not read back", printed);
    }
  });
  fuzz::expect_only_errors("parse_placements", [&] { parse_placements(text); });
  return 0;
}
