// SPDX-License-Identifier: BSD-3-Clause
// dtensor_parity: runs parity cases on ranks that are threads.
//
//   dtensor_parity --cases CASES.json --results RESULTS.json
//
// parity.py writes the cases, and compares the results with Python's.
#include "machine.h"

#include <tests/command_line.h>

#include <fstream>

namespace dtensor::parity {
namespace {

// Timeout that ends ranks that wait for a stuck rank.
constexpr auto kTimeout = std::chrono::seconds(20);

Json results_of(const Json& given) {
  const auto size = given["ranks"].get<int64_t>();
  std::vector<Json> results(static_cast<size_t>(size));
  run_ranks(
      size,
      [&](int64_t rank) {
        results[static_cast<size_t>(rank)] = Machine(given).run();
      },
      {.timeout = kTimeout});
  return results;
}

int run(int argc, char** argv) {
  std::string cases;
  std::string results;
  CLI::App app("Runs parity cases.");
  app.add_option("--cases", cases)->required();
  app.add_option("--results", results)->required();
  test::parse_or_exit(app, argc, argv);
  define_custom_operator();
  Json all = Json::object();
  for (const auto& given : Json::parse(std::ifstream(cases))) {
    all[given["name"].get<std::string>()] = results_of(given);
  }
  std::ofstream(results) << all;
  return 0;
}

} // namespace
} // namespace dtensor::parity

int main(int argc, char** argv) {
  return dtensor::parity::run(argc, argv);
}
