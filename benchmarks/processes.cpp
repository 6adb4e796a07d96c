// SPDX-License-Identifier: BSD-3-Clause
// Collectives of processes with shared memory, compared with collectives of
// in-process ranks.
//
//   processes --only processes/all_reduce/2
//
// The processes are children that wait for orders, so that samples of both
// worlds are taken alternately. Names are processes/kind/ranks/bytes. plain_us
// is the time of the in-process ranks, and times is the ratio of the processes'
// time to plain_us.
#include "collective_kinds.h"
#include "harness.h"

#include <ATen/Parallel.h>
#include <dtensor/comm/rank/rank_memory_impl.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/comm/shared_memory/shared_memory_backend_impl.h>
#include <dtensor/comm/world.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

namespace {

using namespace dtensor;

constexpr int kSamples = 31;

class SharedWorld final : public World {
 public:
  SharedWorld(int64_t rank, int64_t size, std::string file)
      : World(rank, size, "shared world"),
        file_(std::move(file)) {}

 protected:
  GroupBackendPtr make_backend(GroupMembers members) override {
    const auto store = c10::make_intrusive<c10d::FileStore>(file_, -1);
    return detail::shared_memory_backend(std::move(members), store, {});
  }

 private:
  std::string file_;
};

/// A measurement for the processes.
struct Order {
  size_t kind = 0;
  int64_t bytes = 0;
  int64_t calls = 0;
  bool same_as_before = false;
};

/// Processes that take one sample for each order, until no more orders come.
class Processes {
 public:
  explicit Processes(int64_t ranks)
      : path_(
            std::filesystem::temp_directory_path() /
            ("dtensor_bench_" + std::to_string(getpid()) + "_" +
             std::to_string(ranks))) {
    check(pipe(results_.data()));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      orders_.emplace_back();
      check(pipe(orders_.back().data()));
      children_.push_back(fork());
      if (children_.back() == 0) {
        close_orders();
        serve(rank, ranks);
        std::_Exit(0);
      }
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  ~Processes() {
    close_orders();
    for (const pid_t child : children_) {
      waitpid(child, nullptr, 0);
    }
    std::filesystem::remove(path_);
  }

  /// Returns the microseconds per call on rank 0.
  double sample(const Order& order) {
    for (const auto& [from, to] : orders_) {
      check(write(to, &order, sizeof(order)));
    }
    double us = 0;
    check(read(results_[0], &us, sizeof(us)));
    return us;
  }

 private:
  static void check(int64_t result) {
    if (result < 0) {
      std::perror("processes");
      std::exit(1);
    }
  }
  void close_orders() {
    for (const auto& [from, to] : orders_) {
      close(to);
    }
  }

  void serve(int64_t rank, int64_t ranks) {
    at::set_num_threads(1);
    const detail::KeepFreedMemory keep(true); // like run_ranks
    const auto world = std::make_shared<SharedWorld>(rank, ranks, path_);
    const WorldScope scope(world);
    const GroupPtr group = bench::group_of_all();
    bench::Body body;
    Order order;
    while (read(orders_.back()[0], &order, sizeof(order)) == sizeof(order)) {
      if (!order.same_as_before) {
        body = bench::kKinds.at(order.kind).prepare(*group, order.bytes);
      }
      const double us = bench::sample(*group, body, order.calls);
      if (rank == 0) {
        check(write(results_[1], &us, sizeof(us)));
      }
    }
    world->end();
  }

  std::string path_;
  std::array<int, 2> results_{};
  std::vector<std::array<int, 2>> orders_;
  std::vector<pid_t> children_;
};

void measure(
    Processes& processes,
    size_t number,
    int64_t ranks,
    int64_t bytes,
    const bench::Options& options) {
  const bench::Kind& kind = bench::kKinds.at(number);
  const std::string name = "processes/" + bench::name_of(kind, ranks, bytes);
  if (!options.wants(name)) {
    return;
  }
  Order order{
      .kind = number,
      .bytes = bytes,
      .calls = bench::calls_per_sample(bytes, options.smoke)};
  bench::Turns turns;
  run_ranks(ranks, [&](int64_t rank) {
    const GroupPtr group = bench::group_of_all();
    const bench::Body body = kind.prepare(*group, bytes);
    bench::sample(*group, body, order.calls); // warm up
    if (rank == 0) {
      processes.sample(order);
      order.same_as_before = true;
    }
    for (int i = 0; i < (options.smoke ? 1 : kSamples); ++i) {
      const double us = bench::sample(*group, body, order.calls);
      if (rank == 0) {
        turns.add(processes.sample(order), us);
      }
    }
  });
  turns.report(name);
}

void measure_all(const bench::Options& options) {
  for (const int64_t ranks : {2, 4}) {
    Processes processes(ranks);
    for (const int64_t bytes : bench::kBytes) {
      for (size_t kind = 1; kind < bench::kKinds.size(); ++kind) {
        if (bench::kKinds.at(kind).fits(ranks, bytes)) {
          measure(processes, kind, ranks, bytes, options);
        }
      }
    }
  }
}

} // namespace

int main(int argc, char** argv) {
  measure_all(bench::parse(argc, argv, "Collectives of processes"));
  return 0;
}
