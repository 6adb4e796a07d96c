// SPDX-License-Identifier: BSD-3-Clause
// All-reduces of two processes over LibTorch's Gloo, through dtensor's groups
// and through c10d's own interface. The difference is the overhead of the
// adapter.
//
//   gloo/all_reduce/2/<bytes>: us and plain_us as usual; times is the ratio of
//   dtensor's time to that of plain Gloo, measured alternately
#include "collective_kinds.h"
#include "forked.h"
#include "harness.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <dtensor/comm/backends.h>
#include <dtensor/comm/c10d_group.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <array>
#include <string>
#include <vector>

namespace {

using namespace dtensor;

constexpr int kSamples = 51;
constexpr int kWarmUp = 3;
constexpr int64_t kRanks = 2;
constexpr int64_t kSmall = 1 << 20;
constexpr std::array<int64_t, 3> kBytes = {4, 64 << 10, 4 << 20};

// The c10d process group below the adapter's group that was created last.
c10::intrusive_ptr<c10d::ProcessGroupGloo> engine;

GroupBackendPtr make_kept(GroupMembers members, const RendezvousInfo& place) {
  auto options = c10d::ProcessGroupGloo::Options::create(place.timeout);
  options->devices.push_back(
      c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  engine = c10::make_intrusive<c10d::ProcessGroupGloo>(
      place.store,
      static_cast<int>(members.rank),
      static_cast<int>(members.ranks.size()),
      std::move(options));
  return c10d_group(engine, std::move(members));
}

// Both versions allocate a tensor for the result.
void measure(Group& group, int64_t bytes, const bench::Options& options) {
  const auto name =
      "gloo/all_reduce/" + std::to_string(kRanks) + "/" + std::to_string(bytes);
  if (!options.wants(name)) {
    return;
  }
  const auto x = at::ones({bytes / 4});
  const bench::Body ours = [&] { group.all_reduce(x, ReduceOp::kSum); };
  const bench::Body plain = [&] {
    std::vector<at::Tensor> buffers{at::empty_like(x).copy_(x)};
    engine->allreduce(buffers)->wait();
  };
  const int64_t calls = options.smoke || bytes > kSmall ? 2 : 50;
  bench::Turns turns;
  for (int i = 0; i < (options.smoke ? 1 : kSamples + kWarmUp); ++i) {
    // Alternates which version runs first.
    const bool plain_first = i % 2 == 1;
    double plain_us = plain_first ? bench::sample(group, plain, calls) : 0;
    const double us = bench::sample(group, ours, calls);
    plain_us = plain_first ? plain_us : bench::sample(group, plain, calls);
    if (i >= kWarmUp || options.smoke) {
      turns.add(us, plain_us);
    }
  }
  if (group.rank() == 0) {
    turns.report(name);
  }
}

} // namespace

int main(int argc, char** argv) {
  const auto options = bench::parse(argc, argv, "All-reduces over Gloo");
  register_backend("kept", make_kept);
  bench::run_forked(kRanks, "kept", [&](int64_t) {
    const auto group = bench::group_of_all();
    for (const int64_t bytes : kBytes) {
      measure(*group, bytes, options);
    }
    engine.reset();
  });
}
