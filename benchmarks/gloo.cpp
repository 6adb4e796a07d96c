// SPDX-License-Identifier: BSD-3-Clause
// All-reduces of two processes over LibTorch's Gloo, by our groups and by its
// own interface: what the adapter costs.
//
//   gloo/all_reduce/2/<bytes>: us and plain_us as usual; times is ours in
//   relation to plain Gloo in the same moment
#include "collective_kinds.h"
#include "harness.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <dtensor/comm/backends.h>
#include <dtensor/comm/c10d_group.h>
#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/world.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <filesystem>
#include <string>
#include <vector>

namespace {

using namespace dtensor;

constexpr int kSamples = 51;
constexpr int64_t kRanks = 2;
constexpr int64_t kSmall = 1 << 20;
constexpr std::array<int64_t, 3> kBytes = {4, 64 << 10, 4 << 20};

// That of the last group: what our adapter rides on.
c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;

GroupBackendPtr make_kept(GroupMembers members, const MeetingPlace& place) {
  auto options = c10d::ProcessGroupGloo::Options::create(place.timeout);
  options->devices.push_back(
      c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
      place.store,
      static_cast<int>(members.rank),
      static_cast<int>(members.ranks.size()),
      std::move(options));
  return c10d_group(gloo, std::move(members));
}

// Both make a tensor for the result.
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
    gloo->allreduce(buffers)->wait();
  };
  const int64_t calls = options.smoke || bytes > kSmall ? 2 : 50;
  std::vector<double> us;
  std::vector<double> plain_us;
  std::vector<double> times;
  for (int i = 0; i < (options.smoke ? 1 : kSamples + 3); ++i) {
    // In turn, so that neither is always the second.
    const bool plain_first = i % 2 == 1;
    double p = plain_first ? bench::sample(group, plain, calls) : 0;
    const double o = bench::sample(group, ours, calls);
    p = plain_first ? p : bench::sample(group, plain, calls);
    if (i >= 3 || options.smoke) {
      us.push_back(o);
      plain_us.push_back(p);
      times.push_back(o / p);
    }
  }
  if (group.rank() == 0) {
    const double median = bench::median(us);
    bench::report(
        name,
        {{"us", median},
         {"plain_us", bench::median(plain_us)},
         {"times", bench::median(times)},
         {"spread", bench::spread(us, median)}});
  }
}

void run_rank(
    int64_t rank,
    const std::string& meeting,
    const bench::Options& options) {
  at::set_num_threads(1);
  register_backend("kept", make_kept);
  init_process_group(
      {.backend = "kept",
       .init_method = "file://" + meeting,
       .rank = rank,
       .world_size = kRanks});
  {
    const auto group = bench::group_of_all();
    for (const int64_t bytes : kBytes) {
      measure(*group, bytes, options);
    }
  }
  gloo.reset();
  destroy_process_group();
}

} // namespace

int main(int argc, char** argv) {
  const auto options = bench::parse(argc, argv, "All-reduces over Gloo");
  const std::filesystem::path meeting = std::filesystem::temp_directory_path() /
      ("dtensor_bench_gloo_" + std::to_string(getpid()));
  const pid_t child = fork();
  run_rank(child == 0 ? 1 : 0, meeting, options);
  if (child == 0) {
    return 0;
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::filesystem::remove(meeting);
  return WEXITSTATUS(status);
}
