// SPDX-License-Identifier: BSD-3-Clause
#include "worker.h"

#include "attempt.h"
#include "selection.h"

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>

namespace dtensor::randomized {
namespace {

void count(
    const Trial& trial,
    const std::string& where,
    const Verdict& verdict,
    const Settings& settings,
    SharedTally& tally) {
  if (verdict.outcome == Outcome::kDifferent) {
    report_different(trial.call, where, verdict.why, settings, tally);
    return;
  }
  tally.add(verdict);
  if (verdict.outcome == Outcome::kRefused && settings.verbose) {
    print_line(c10::str(
        "refused ", trial.call.name(), " | ", where, " | ", verdict.why));
  }
}

// Runs trials on all meshes, starting from a place.
class Worker {
 public:
  Worker(
      std::vector<Trial> trials,
      const Place& begin,
      const Settings& settings,
      SharedTally& tally,
      SharedTally::Worker& self)
      : trials_(std::move(trials)),
        begin_(begin),
        settings_(settings),
        tally_(tally),
        self_(self) {}

  void try_on(int64_t mesh) {
    const auto& shape = meshes()[static_cast<size_t>(mesh)];
    const auto ranks = c10::multiply_integers(shape);
    Meeting meeting(static_cast<size_t>(ranks));
    run_ranks(ranks, [&](int64_t rank) {
      const auto device_mesh = init_device_mesh(at::kCPU, shape);
      for (size_t call = 0; call < trials_.size(); ++call) {
        const Place place{mesh, static_cast<int64_t>(call), 0};
        if (trials_[call].skip) {
          tally_.skipped += rank == 0 && mesh == 0 && !(place < begin_);
        } else {
          try_layouts(place, rank, device_mesh, meeting);
        }
      }
    });
  }

 private:
  void try_layouts(
      Place place,
      int64_t rank,
      const DeviceMesh& mesh,
      Meeting& meeting) {
    const auto& trial = trials_[static_cast<size_t>(place.call)];
    const auto all = combinations_of(
        trial.truth,
        meshes()[static_cast<size_t>(place.mesh)],
        settings_.random_layouts,
        seed_of(settings_, trial.call, place.mesh));
    for (const auto k : selected(settings_, trial, place.mesh, all)) {
      place.combination = static_cast<int64_t>(k);
      if (place < begin_) {
        continue;
      }
      if (rank == 0) {
        self_.at(place);
      }
      const bool backwards =
          (static_cast<size_t>(place.mesh) + trial.call.number) % 2 == 1;
      const auto verdict =
          try_combination(trial, mesh, all[k], backwards, meeting);
      if (rank == 0) {
        count(
            trial,
            where_of(trial, meshes()[static_cast<size_t>(place.mesh)], all[k]),
            verdict,
            settings_,
            tally_);
      }
    }
  }

  std::vector<Trial> trials_;
  Place begin_;
  const Settings& settings_;
  SharedTally& tally_;
  SharedTally::Worker& self_;
};

} // namespace

const std::vector<std::vector<int64_t>>& meshes() {
  static const std::vector<std::vector<int64_t>> all = {{2}, {3}, {2, 2}};
  return all;
}

void report_different(
    const Call& call,
    const std::string& where,
    const std::string& why,
    const Settings& settings,
    SharedTally& tally) {
  const bool known = settings.pending.count(call.name()) != 0;
  ++(known ? tally.pending : tally.different);
  if (!known || settings.verbose) {
    print_line(c10::str(
        known ? "pending " : "DIFFERENT ",
        call.name(),
        " #",
        call.number,
        " | ",
        where,
        " | ",
        why));
  }
}

void work(
    std::vector<Call> calls,
    const Place& begin,
    const Settings& settings,
    SharedTally& tally,
    SharedTally::Worker& self) {
  std::vector<Trial> trials;
  for (auto& call : calls) {
    self.at({-1, static_cast<int64_t>(trials.size()), 0});
    trials.push_back(trial_of(std::move(call)));
  }
  Worker worker(std::move(trials), begin, settings, tally, self);
  const auto count = static_cast<int64_t>(meshes().size());
  for (auto mesh = std::max<int64_t>(begin.mesh, 0); mesh < count; ++mesh) {
    worker.try_on(mesh);
  }
}

} // namespace dtensor::randomized
