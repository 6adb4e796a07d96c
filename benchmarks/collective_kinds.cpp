// SPDX-License-Identifier: BSD-3-Clause
#include "collective_kinds.h"

#include <ATen/ops/ones.h>
#include <dtensor/comm/world.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

namespace bench {
namespace {

using namespace dtensor;

using Clock = std::chrono::steady_clock;

at::Tensor input(int64_t bytes) {
  return at::ones({bytes / 4}, at::kFloat);
}

Body all_reduce(Group& group, int64_t bytes) {
  return [&group, x = input(bytes)] { group.all_reduce(x, ReduceOp::kSum); };
}

// All-reduce of a tensor that was just computed, as between operators. The
// tensor is no longer in the caches of the other ranks.
Body all_reduce_of_new(Group& group, int64_t bytes) {
  return [&group, x = input(bytes)] {
    x.fill_(1);
    group.all_reduce(x, ReduceOp::kSum);
  };
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

// Copies the bytes that each rank must move in a bandwidth-optimal all-reduce.
Body memcpy_of_all_reduce(Group& group, int64_t bytes) {
  const auto moved =
      static_cast<size_t>(2 * (group.size() - 1) * bytes / group.size());
  return [from = std::vector<char>(moved, 1),
          to = std::make_shared<std::vector<char>>(moved, char{2})] {
    std::memcpy(to->data(), from.data(), from.size());
    asm volatile("" : : "r"(to->data()) : "memory"); // NOLINT: keep the copy
  };
}

} // namespace

// Kinds without data are measured only once.
bool Kind::fits(int64_t ranks, int64_t bytes) const {
  return has_data ? bytes >= 4 * elements_per_rank * ranks
                  : bytes == kBytes.front();
}

constexpr std::array<Kind, 8> kKinds = {{
    {"memcpy", memcpy_of_all_reduce},
    {"all_reduce", all_reduce},
    {"all_reduce_of_new", all_reduce_of_new},
    {"all_gather", all_gather},
    {"reduce_scatter", reduce_scatter, 1},
    {"all_to_all", all_to_all, 1},
    {"broadcast", broadcast},
    {"barrier", barrier, 0, false},
}};

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

GroupPtr group_of_all() {
  std::vector<int64_t> ranks(static_cast<size_t>(get_world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return new_group(ranks, "bench");
}

std::string name_of(const Kind& kind, int64_t ranks, int64_t bytes) {
  return std::string(kind.name) + "/" + std::to_string(ranks) + "/" +
      std::to_string(kind.has_data ? bytes : 0);
}

int64_t calls_per_sample(int64_t bytes, bool smoke) {
  return smoke
      ? 1
      : std::clamp<int64_t>((int64_t{20} << 20) / (bytes + 1), 2, 2000);
}

// The barrier keeps the other ranks in step.
double sample(Group& group, const Body& body, int64_t calls) {
  group.barrier();
  const auto begin = Clock::now();
  for (int64_t call = 0; call < calls; ++call) {
    body();
  }
  const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
  return time.count() / static_cast<double>(calls);
}

} // namespace bench
