// SPDX-License-Identifier: BSD-3-Clause
// Layouts are values. The shards of each rank, and the redistribution between
// two layouts, can be computed and printed without running any ranks.
#include "check.h"

#include <dtensor/dtensor.h>

#include <iostream>

using namespace dtensor;

// A layout is a mesh, one placement per mesh dimension, and a tensor's shape.
void one_layout() {
  const DeviceMesh mesh(
      torch::kCPU, {2, 4}, {0, 1, 2, 3, 4, 5, 6, 7}, {"dp", "tp"}, /*rank=*/5);
  const auto spec =
      Spec::make(mesh, {Shard(0), Partial("sum")}, {8, 6}, torch::kFloat);
  std::cout << *spec << "\n";
  CHECK_THAT(to_string(*spec) == "f32[8, 6] on (dp=2, tp=4): S(0) P(sum)");

  // Rank 5 has coordinates (1, 1), so it has the second half of the tensor's
  // rows.
  CHECK_THAT(mesh.get_local_rank("dp") == 1);
  CHECK_THAT(spec->local_sizes() == SizesRef({4, 6}));
  CHECK_THAT(mesh["tp"].ranks() == std::vector<int64_t>({4, 5, 6, 7}));
}

// Shards follow torch.chunk: 5 rows on 3 ranks are 2, 2 and 1.
void uneven_shards() {
  for (const int64_t rank : {0, 1, 2}) {
    const auto parsed = parse_spec("f32[5] on (tp=3): S(0)");
    std::cout << "rank " << rank << " holds "
              << parsed.spec(rank)->local_sizes() << " of 5 rows\n";
  }
  CHECK_THAT((chunk(5, 3, 2) == Interval{4, 5}));
}

// Equal layouts are one object, so comparing them compares pointers.
void interned() {
  const auto a = parse_spec("f32[8, 6] on (tp=2): S(0)").spec();
  const auto b = parse_spec("f32[8, 6] on (tp=2): S(0)").spec();
  CHECK_THAT(a == b);
}

// A plan is a sequence of steps between two layouts that takes little time.
void plans() {
  const auto from = parse_spec("f32[8, 8] on (dp=2, tp=2): S(0) S(1)").spec();
  const auto to = from->with_placements({Shard(1), Shard(0)});
  const auto steps = plan(from, to);
  std::cout << to_string(*steps, from->mesh()) << "\n";
  for (const auto& step : steps->steps) {
    CHECK_THAT(step.kind != StepKind::kAllGather); // nothing is gathered
  }
}

int main() {
  one_layout();
  uneven_shards();
  interned();
  plans();
}
