// SPDX-License-Identifier: BSD-3-Clause
// Collectives of in-process ranks from 4 B to 16 MB, and the copy by memcpy
// that an all-reduce cannot do without, measured in between.
//
//   collectives --only all_reduce/2
//
// Names are kind/ranks/bytes of one rank's input, as in anchors/.
#include "harness.h"

#include <ATen/ops/ones.h>
#include <dtensor/comm/ranks.h>

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>

namespace {

using namespace dtensor;

using Clock = std::chrono::steady_clock;
using Body = std::function<void()>;

constexpr int kSamples = 31;
constexpr std::array<int64_t, 10> kBytes = {
    4,
    64,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20};

/// One thing to measure: what it sets up on a rank, and returns to be timed.
struct Kind {
  const char* name;
  Body (*prepare)(Group& group, int64_t bytes);
  /// The smallest input that every rank gets a part of, in elements per rank.
  int64_t elements_per_rank = 0;
};

at::Tensor input(int64_t bytes) {
  return at::ones({bytes / 4}, at::kFloat);
}

Body all_reduce(Group& group, int64_t bytes) {
  return [&group, x = input(bytes)] { group.all_reduce(x, ReduceOp::kSum); };
}

Body all_gather(Group& group, int64_t bytes) {
  return [&group, x = input(bytes)] { group.all_gather(x, 0); };
}

Body reduce_scatter(Group& group, int64_t bytes) {
  return [&group, x = input(bytes)] {
    group.reduce_scatter(x, 0, ReduceOp::kSum);
  };
}

Body all_to_all(Group& group, int64_t bytes) {
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    parts.push_back(input(bytes / group.size()));
  }
  return [&group, parts] { group.all_to_all(parts); };
}

Body broadcast(Group& group, int64_t bytes) {
  return [&group, x = input(bytes)] { group.broadcast(x, 0); };
}

Body barrier(Group& group, int64_t) {
  return [&group] { group.barrier(); };
}

// What each rank of a bandwidth-optimal all-reduce must move.
Body memcpy_of_all_reduce(Group& group, int64_t bytes) {
  const auto moved =
      static_cast<size_t>(2 * (group.size() - 1) * bytes / group.size());
  return [from = std::vector<char>(moved, 1),
          to = std::make_shared<std::vector<char>>(moved, char{2})] {
    std::memcpy(to->data(), from.data(), from.size());
    asm volatile("" : : "r"(to->data()) : "memory"); // NOLINT: keep the copy
  };
}

constexpr std::array<Kind, 7> kKinds = {{
    {"memcpy", memcpy_of_all_reduce},
    {"all_reduce", all_reduce},
    {"all_gather", all_gather},
    {"reduce_scatter", reduce_scatter, 1},
    {"all_to_all", all_to_all, 1},
    {"broadcast", broadcast},
    {"barrier", barrier},
}};

/// The same on all ranks: about 20 MB or 2000 calls a sample.
int64_t calls_per_sample(int64_t bytes, bool smoke) {
  return smoke
      ? 1
      : std::clamp<int64_t>((int64_t{20} << 20) / (bytes + 1), 2, 2000);
}

// Between the first and the last call of rank 0; the barrier keeps the others
// in step.
double sample(Group& group, const Body& body, int64_t calls) {
  group.barrier();
  const auto begin = Clock::now();
  for (int64_t call = 0; call < calls; ++call) {
    body();
  }
  const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
  return time.count() / static_cast<double>(calls);
}

void measure(
    const Kind& kind,
    int64_t ranks,
    int64_t bytes,
    const bench::Options& options) {
  const std::string name = std::string(kind.name) + "/" +
      std::to_string(ranks) + "/" + std::to_string(bytes);
  if (!options.wants(name)) {
    return;
  }
  const int64_t calls = calls_per_sample(bytes, options.smoke);
  std::vector<double> samples;
  run_ranks(ranks, [&](int64_t rank) {
    std::vector<int64_t> members(static_cast<size_t>(ranks));
    std::iota(members.begin(), members.end(), 0);
    const GroupPtr group = new_group(members, "bench");
    const Body body = kind.prepare(*group, bytes);
    sample(*group, body, calls); // warm up
    for (int i = 0; i < (options.smoke ? 1 : kSamples); ++i) {
      const double us = sample(*group, body, calls);
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
    for (const int64_t bytes : kBytes) {
      for (const Kind& kind : kKinds) {
        const bool no_data = kind.prepare == barrier;
        if (no_data ? bytes == kBytes.front()
                    : bytes >= 4 * kind.elements_per_rank * ranks) {
          measure(kind, ranks, no_data ? 0 : bytes, options);
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
