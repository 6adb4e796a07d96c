// SPDX-License-Identifier: BSD-3-Clause
// Collectives of ranks that a launcher started, over the launcher's backend:
//
//   dtensor-run -n 4 launched --only launched/all_reduce
//   DTENSOR_BACKEND=mpi mpirun -n 4 launched
//
// Names are launched/kind/ranks/bytes. Rank 0 reports.
#include "collective_kinds.h"
#include "harness.h"

#include <ATen/Parallel.h>
#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/world.h>

#include <string>
#include <vector>

namespace {

constexpr int kSamples = 15;

void measure(
    dtensor::Group& group,
    const bench::Kind& kind,
    int64_t bytes,
    const bench::Options& options) {
  const std::string name =
      "launched/" + bench::name_of(kind, group.size(), bytes);
  if (!options.wants(name)) {
    return;
  }
  const int64_t calls = bench::calls_per_sample(bytes, options.smoke);
  const bench::Body body = kind.prepare(group, bytes);
  bench::sample(group, body, calls); // warm up
  std::vector<double> us;
  for (int i = 0; i < (options.smoke ? 1 : kSamples); ++i) {
    us.push_back(bench::sample(group, body, calls));
  }
  if (group.rank() == 0) {
    const double median = bench::median(us);
    bench::report(
        name, {{"us", median}, {"spread", bench::spread(us, median)}});
  }
}

} // namespace

int main(int argc, char** argv) {
  const auto options =
      bench::parse(argc, argv, "Collectives of launched ranks");
  at::set_num_threads(1);
  dtensor::init_process_group();
  {
    const auto group = bench::group_of_all();
    for (const int64_t bytes : bench::kBytes) {
      for (size_t kind = 1; kind < bench::kKinds.size(); ++kind) {
        if (bench::kKinds.at(kind).fits(group->size(), bytes)) {
          measure(*group, bench::kKinds.at(kind), bytes, options);
        }
      }
    }
  }
  dtensor::destroy_process_group();
}
