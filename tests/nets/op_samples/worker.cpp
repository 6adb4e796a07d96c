// SPDX-License-Identifier: BSD-3-Clause
#include "worker.h"

#include "meeting.h"
#include "selection.h"
#include "trial.h"

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>

#include <functional>
#include <set>

namespace dtensor::nets {
namespace {

struct Verdict {
  enum Kind : uint8_t { kEqual, kRefused, kDifferent } kind = kEqual;
  std::string why;
  Refusal refusal = Refusal::kCount;
};

std::string arguments_of(const Call& call) {
  std::string text;
  const auto& arguments = call.op.schema().arguments();
  for (size_t i = 0; i < arguments.size() && i < call.arguments.size(); ++i) {
    const auto& value = call.arguments[i];
    const bool numbers =
        value.isIntList() || value.isDoubleList() || value.isBoolList();
    if (value.isScalar() || value.isBool() || value.isString() || numbers) {
      text += c10::str(text.empty() ? "" : ", ", arguments[i].name(), "=");
      text += numbers ? c10::str("[", c10::Join(", ", value.toListRef()), "]")
                      : c10::str(value);
    }
  }
  return "(" + text + ")";
}

std::string
where_of(const Trial& trial, int64_t mesh, const Combination& combination) {
  return c10::str(
      "mesh (",
      c10::Join(", ", meshes()[static_cast<size_t>(mesh)]),
      ") | ",
      to_string(trial.truth, combination),
      " | ",
      arguments_of(trial.call));
}

bool is_internal(const std::string& error) {
  return error.find("INTERNAL ASSERT") != std::string::npos;
}

// Judges an error of all ranks. `expected` is the plain operator's error.
Verdict
judge(const std::string& error, const std::string& expected, bool may_refuse) {
  if (!expected.empty()) {
    return is_internal(error) && !is_internal(expected)
        ? Verdict{Verdict::kDifferent, "throws " + error}
        : Verdict{};
  }
  const auto refusal = refusal_of(error);
  if (refusal == Refusal::kCount || !may_refuse) {
    return {Verdict::kDifferent, "throws " + error};
  }
  return {Verdict::kRefused, error, refusal};
}

std::string values_of(const Trial& trial, Mode mode, const Results& mine) {
  try {
    return value_difference(trial.truth, mode, mine, trial.compared);
  } catch (const c10::Error& e) {
    return c10::str("values: ", e.what_without_backtrace());
  }
}

// Runs one call on all ranks and compares. All ranks return the same verdict.
Verdict attempt(
    const Trial& trial,
    const Tensors& placed,
    Mode mode,
    bool may_refuse,
    Meeting& meeting) {
  const auto& truth = trial.truth;
  const auto& expected = mode == Mode::kGrad ? truth.grad : truth.no_grad;
  const bool forward_only =
      !expected.backward_error.empty() || trial.compared != Compared::kAll;
  const auto mine = compute(
      trial.call, placed, truth.mutated, truth.leaves, mode, forward_only);
  const bool failed = !mine.error.empty() || !mine.backward_error.empty();
  const bool has_shapes = !failed && expected.error.empty();
  const auto told = meeting.tell(
      {mine.error,
       mine.backward_error,
       has_shapes ? shape_difference(truth, mode, mine) : ""});
  // A value that the plain operator refuses may be on one rank only, so only
  // some ranks throw.
  if (told.out_of_step() && expected.error.empty()) {
    return {Verdict::kDifferent, "out of step: " + told.text()};
  }
  if (!told.error().empty()) {
    return judge(told.error(), expected.error, may_refuse);
  }
  if (!expected.error.empty()) {
    return {Verdict::kDifferent, "does not throw: " + expected.error};
  }
  if (!told.backward_error().empty()) {
    auto verdict = judge(told.backward_error(), "", may_refuse);
    verdict.why = "backward " + verdict.why;
    return verdict;
  }
  if (!told.difference().empty()) {
    return {Verdict::kDifferent, told.difference()};
  }
  const auto values = meeting.tell({"", "", values_of(trial, mode, mine)});
  return values.difference().empty()
      ? Verdict{}
      : Verdict{Verdict::kDifferent, values.difference()};
}

// Describes the place of the call in the order of calls.
std::string
name_in_order(const Trial& trial, const Trial* before, const Trial* one) {
  const auto twin =
      one == &trial ? "" : "twin " + arguments_of(one->call) + " ";
  return before == nullptr ? twin
      : before == one      ? twin + "again, "
                      : twin + "after " + arguments_of(before->call) + ", ";
}

// Tries the call without and with gradients. The verdict is refused if the call
// itself is refused.
Verdict try_combination(
    const Trial& trial,
    const DeviceMesh& mesh,
    const Combination& combination,
    bool backwards,
    Meeting& meeting) {
  const auto placed = place(trial.truth, mesh, combination);
  const bool may_refuse =
      !is_replicated(combination) || is_random(trial.call.op);
  Verdict worst;
  for (const auto mode : {Mode::kNoGrad, Mode::kGrad}) {
    if (mode == Mode::kGrad && !trial.truth.differentiable) {
      break;
    }
    std::set<const Trial*> refused;
    const Trial* before = nullptr;
    for (const auto* one : order_of(trial, backwards)) {
      if (refused.count(one) != 0) {
        continue;
      }
      auto verdict = attempt(*one, placed, mode, may_refuse, meeting);
      if (verdict.kind == Verdict::kDifferent) {
        verdict.why = (mode == Mode::kGrad ? "grad: " : "no grad: ") +
            name_in_order(trial, before, one) + verdict.why;
        return verdict;
      }
      if (verdict.kind == Verdict::kRefused) {
        refused.insert(one);
        worst = one == &trial ? verdict : worst;
      }
      before = one;
    }
  }
  return worst;
}

void count(
    const Trial& trial,
    const std::string& where,
    const Verdict& verdict,
    const Settings& settings,
    Tally& tally) {
  switch (verdict.kind) {
    case Verdict::kEqual:
      ++tally.equal;
      break;
    case Verdict::kRefused:
      ++tally.refused[static_cast<size_t>(verdict.refusal)];
      if (settings.verbose) {
        print_line(c10::str(
            "refused ", trial.call.name(), " | ", where, " | ", verdict.why));
      }
      break;
    case Verdict::kDifferent:
      report_different(trial.call, where, verdict.why, settings, tally);
  }
}

// Runs trials on all meshes, starting from a place.
class Worker {
 public:
  Worker(
      std::vector<Trial> trials,
      const Place& begin,
      const Settings& settings,
      Tally& tally,
      Tally::Worker& self)
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
            where_of(trial, place.mesh, all[k]),
            verdict,
            settings_,
            tally_);
      }
    }
  }

  std::vector<Trial> trials_;
  Place begin_;
  const Settings& settings_;
  Tally& tally_;
  Tally::Worker& self_;
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
    Tally& tally) {
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
    Tally& tally,
    Tally::Worker& self) {
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

} // namespace dtensor::nets
