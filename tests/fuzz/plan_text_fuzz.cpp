// SPDX-License-Identifier: BSD-3-Clause
// Parses any bytes as the text of a plan. Expects an error, or a plan that is
// equal after printing and parsing, with patterns that can be matched with a
// name.
#include <dtensor/parallel/plan/module_names_impl.h>
#include <dtensor/program/plan_text.h>

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  using namespace dtensor;
  const std::string text(reinterpret_cast<const char*>(bytes), count);
  fuzz::expect_only_errors("[", [&] {
    const auto lines = parse_plan(text);
    make_plan(lines);
    for (const auto& line : lines) {
      detail::matches_glob(line.pattern, "layers.0.attention.wq");
      detail::matches_glob(line.pattern, line.pattern);
    }
    const auto printed = to_string(lines);
    if (to_string(parse_plan(printed)) != printed) {
      fuzz::fail("a plan that does not read back", printed);
    }
  });
  return 0;
}
