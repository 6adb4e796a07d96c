// SPDX-License-Identifier: BSD-3-Clause
// Collectives of in-process ranks from 4 B to 16 MB, interleaved with the
// memcpy that is the minimum copy of an all-reduce.
//
//   collectives --only all_reduce/2
//
// Names are kind/ranks/bytes of one rank's input, as in anchors/.
#include "collective_kinds.h"
#include "harness.h"

#include <dtensor/comm/ranks.h>

namespace {

using namespace dtensor;

constexpr int kSamples = 31;

void measure(
    const bench::Kind& kind,
    int64_t ranks,
    int64_t bytes,
    const bench::Options& options) {
  const std::string name = bench::name_of(kind, ranks, bytes);
  if (!options.wants(name)) {
    return;
  }
  const int64_t calls = bench::calls_per_sample(bytes, options.smoke);
  std::vector<double> samples;
  run_ranks(ranks, [&](int64_t rank) {
    const GroupPtr group = bench::group_of_all();
    const bench::Body body = kind.prepare(*group, bytes);
    bench::sample(*group, body, calls); // warm up
    for (int i = 0; i < (options.smoke ? 1 : kSamples); ++i) {
      const double us = bench::sample(*group, body, calls);
      if (rank == 0) {
        samples.push_back(us);
      }
    }
  });
  const double us = bench::median(samples);
  bench::report(name, {{"us", us}, {"spread", bench::spread(samples, us)}});
}

void measure_all(const bench::Options& options) {
  for (const int64_t ranks : {2, 4}) {
    for (const int64_t bytes : bench::kBytes) {
      for (const bench::Kind& kind : bench::kKinds) {
        if (kind.fits(ranks, bytes)) {
          measure(kind, ranks, bytes, options);
        }
      }
    }
  }
}

} // namespace

int main(int argc, char** argv) {
  measure_all(bench::parse(argc, argv, "Collectives of in-process ranks"));
  return 0;
}
