// SPDX-License-Identifier: BSD-3-Clause
#include "trial.h"

#include <dtensor/dtensor.h>
#include <dtensor/tensor/meta_impl.h>
#include <torch/torch.h>

#include <mutex>
#include <optional>

#include "machine.h"

namespace dtensor::programs {
namespace {

// Thrown by a rank that has found a difference, to end the others.
struct Different {
  std::string why;
};

using randomized::first_line;
using randomized::Verdict;

// True for errors of this library, which begin with "[where]". A wait that
// timed out is a hang, not a refusal.
bool is_refusal(const std::string& text) {
  return text.rfind('[', 0) == 0 && text.find("INTERNAL ASSERT") == text.npos &&
      text.find("[run_ranks]") == text.npos &&
      text.find("waited") == text.npos && text.find("ended") == text.npos;
}

std::string kind_of(const std::string& refusal) {
  for (const auto* kind :
       {"is out of date",
        "would not reach that tensor",
        "got mixed",
        "layout of self"}) {
    if (refusal.find(kind) != refusal.npos) {
      return kind;
    }
  }
  return refusal.substr(1, refusal.find(']') - 1);
}

// Returns the expected local tensor, if this rank's local tensor is a slice of
// the full tensor.
std::optional<at::Tensor> expected_part(
    const at::Tensor& truth,
    const Spec& spec) {
  for (const auto& p : spec.placements()) {
    if (!p.is_shard() && !p.is_replicate()) {
      return std::nullopt;
    }
  }
  return to_local(
      distribute_tensor(truth, spec.mesh(), spec.placements(), std::nullopt));
}

std::string difference(const at::Tensor& mine, const at::Tensor& truth) {
  if (mine.sizes() != truth.sizes()) {
    return c10::str("has shape ", mine.sizes(), ", not ", truth.sizes());
  }
  if (mine.scalar_type() != truth.scalar_type()) {
    return c10::str("is ", mine.scalar_type(), ", not ", truth.scalar_type());
  }
  if (mine.requires_grad() != truth.requires_grad()) {
    return truth.requires_grad() ? "does not require grad" : "requires grad";
  }
  const at::NoGradGuard no_grad;
  const auto full = truth.detach().resolve_conj().resolve_neg();
  auto got = mine.detach();
  auto expected = full;
  if (is_dtensor(mine)) {
    const DTensor d(got);
    const auto part = expected_part(full, *d.spec());
    got = part ? d.to_local() : d.full_tensor();
    expected = part.value_or(full);
  }
  return at::allclose(got, expected, 1e-7, 1e-9, /*equal_nan=*/true)
      ? ""
      : c10::str("differs:\n", got, "\nnot\n", expected);
}

// Both machines of one rank: with DTensors and with plain tensors.
class Pair {
 public:
  Pair(const Program& program, const DeviceMesh& mesh)
      : mesh_(mesh),
        plain_(program, std::nullopt),
        mine_(program, mesh) {}

  void run(const Step& step);
  const std::map<std::string, int64_t>& refused() const {
    return refused_;
  }

 private:
  std::string run_mine(const Step& step);
  void check_justified(const Step& step, const std::string& refusal);
  bool all_ranks_agree(const Step& step, const std::string& refusal);
  void run_plain(const Step& step);
  bool refills(const Step& step);
  void forget(const Step& step);
  void compare(const Step& step);
  void check_variable(const Step& step, int id);
  void check_gradients(const Step& step);
  [[noreturn]] void fail(const Step& step, const std::string& why);

  DeviceMesh mesh_;
  Machine plain_;
  Machine mine_;
  std::map<std::string, int64_t> refused_;
  bool is_over_ = false;
  bool refilled_ = false; // memory was written without its version counter
};

void Pair::fail(const Step& step, const std::string& why) {
  throw Different{c10::str(
      "after v", step.out, " = ", step.op, " on rank ", get_rank(), ": ", why)};
}

// Runs a step on DTensors. Returns the text if it is refused.
std::string Pair::run_mine(const Step& step) {
  try {
    mine_.run(step);
    return "";
  } catch (const c10::Error& e) {
    const std::string text = e.what_without_backtrace();
    if (is_refusal(text)) {
      check_justified(step, text);
      return text;
    }
    try {
      plain_.run(step);
    } catch (const c10::Error&) {
      return "[plain] refuses too";
    }
    fail(step, "threw " + first_line(text));
  }
}

bool is_of_refill(const std::string& refusal) {
  return refusal.find("without a change of its version counter") !=
      refusal.npos;
}

// Fails if DTensors report a refill although only operators have written.
void Pair::check_justified(const Step& step, const std::string& refusal) {
  if (!refilled_ && is_of_refill(refusal)) {
    fail(step, "threw, where no memory was refilled, " + first_line(refusal));
  }
}

// True if all ranks refuse the step or none does. Only a refusal of a refill
// may differ across ranks, because a rank notices only changes of its own
// shards. In a real program, such a refusal would end the other ranks too.
bool Pair::all_ranks_agree(const Step& step, const std::string& refusal) {
  const auto flag = at::full({}, refusal.empty() ? 0 : 1, at::kLong);
  const Placements sum(
      static_cast<size_t>(mesh_.ndim()), Partial(ReduceOp::kSum));
  const auto refused =
      full_tensor(DTensor::from_local(flag, mesh_, sum)).item<int64_t>();
  const bool agree = refused == 0 || refused == mesh_.size();
  if (!agree && !refusal.empty() && !is_of_refill(refusal)) {
    fail(step, "refused, but not on all ranks, " + first_line(refusal));
  }
  return agree;
}

// Runs a step on plain tensors. If it throws, the step no longer fits because
// earlier steps were removed, so the comparison ends there.
void Pair::run_plain(const Step& step) {
  try {
    plain_.run(step);
  } catch (const c10::Error&) {
    is_over_ = true;
  }
}

// True for writes that no version counter records; tensors of inference mode
// have none.
bool Pair::refills(const Step& step) {
  return step.op == "refill" ||
      (step.op.ends_with('_') &&
       plain_.variables().at(step.from[0]).is_inference());
}

// Drops variables with undefined content: a graph with a failed backward pass,
// and copied views and graphs that used a buffer before it was written through
// data_ptr().
void Pair::forget(const Step& step) {
  refilled_ |= refills(step);
  if (step.op != "refill") {
    return;
  }
  auto& mine = mine_.variables();
  auto& plain = plain_.variables();
  const at::Tensor memory = plain.at(step.from[0]); // which may be erased
  for (auto it = plain.begin(); it != plain.end();) {
    const auto& t = mine.at(it->first);
    const bool copied = is_dtensor(t) && detail::copied_from(t) != nullptr;
    if ((copied && it->second.is_alias_of(memory)) ||
        (t.requires_grad() && !t.is_leaf())) {
      mine.erase(it->first);
      it = plain.erase(it);
    } else {
      ++it;
    }
  }
}

void Pair::check_variable(const Step& step, int id) {
  const auto name = c10::str("v", id);
  try {
    const auto why =
        difference(mine_.variables().at(id), plain_.variables().at(id));
    if (!why.empty()) {
      fail(step, name + " " + why);
    }
  } catch (const c10::Error& e) {
    const std::string text = e.what_without_backtrace();
    if (text.find("is out of date") == text.npos) {
      fail(step, "reading " + name + " threw " + first_line(text));
    }
    ++refused_["is out of date"];
    mine_.variables().erase(id);
    plain_.variables().erase(id);
  }
}

void Pair::check_gradients(const Step& step) {
  const auto mine = mine_.leaves();
  const auto plain = plain_.leaves();
  for (size_t i = 0; i < mine.size(); ++i) {
    auto got = mine[i].grad();
    auto truth = plain[i].grad();
    if (!got.defined() && !truth.defined()) {
      continue;
    }
    truth =
        truth.defined() ? truth.detach() : at::zeros_like(plain[i].detach());
    got = got.defined() ? got.detach() : at::zeros_like(mine[i].detach());
    const auto why = difference(got, truth);
    if (!why.empty()) {
      fail(step, c10::str("the gradient of leaf ", i, " ", why));
    }
  }
}

void Pair::compare(const Step& step) {
  std::vector<int> ids;
  for (const auto& [id, t] : plain_.variables()) {
    ids.push_back(id);
  }
  for (const auto id : ids) {
    check_variable(step, id);
  }
  check_gradients(step);
}

void Pair::run(const Step& step) {
  if (is_over_ || !plain_.can_run(step) || !mine_.can_run(step)) {
    return;
  }
  const auto refusal = run_mine(step);
  if (!all_ranks_agree(step, refusal)) {
    ++refused_["boundary"];
    is_over_ = true;
  } else if (refusal.empty()) {
    run_plain(step);
  } else {
    ++refused_[kind_of(refusal)];
    is_over_ = step.op == "backward" || step.op == "sgd";
  }
  if (!is_over_) {
    forget(step);
    compare(step);
  }
}

Verdict run_on_this_rank(const Program& program) {
  Pair pair(program, init_device_mesh(at::kCPU, program.mesh));
  for (const auto& step : program.steps) {
    pair.run(step);
  }
  return {
      pair.refused().empty() ? randomized::Outcome::kEqual
                             : randomized::Outcome::kRefused,
      "",
      pair.refused()};
}

Verdict try_steps(const Program& program) {
  std::mutex mutex;
  Verdict verdict; // the first difference, if any
  const auto add = [&](const Verdict& one) {
    const std::lock_guard lock(mutex);
    if (verdict.outcome != randomized::Outcome::kDifferent) {
      verdict = one;
    }
  };
  RunRanksOptions options;
  options.timeout = std::chrono::seconds(30);
  try {
    run_ranks(
        c10::multiply_integers(program.mesh),
        [&] {
          try {
            add(run_on_this_rank(program));
          } catch (const Different& d) {
            add(Verdict::different(d.why));
            throw std::runtime_error(d.why);
          }
        },
        options);
  } catch (const std::exception& e) {
    add(Verdict::different(e.what()));
  }
  return verdict;
}

} // namespace

Verdict try_program(const Program& program) {
  constexpr size_t kFewestSteps = 5;
  return program.steps.size() < kFewestSteps ? Verdict::skipped("too few steps")
                                             : try_steps(program);
}

std::string shrink(Program program) {
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = program.steps.size(); i-- > 0;) {
      auto shorter = program;
      shorter.steps.erase(shorter.steps.begin() + static_cast<int64_t>(i));
      if (try_steps(shorter).outcome == randomized::Outcome::kDifferent) {
        program = std::move(shorter);
        changed = true;
      }
    }
  }
  return program.text() + "  " + try_steps(program).why;
}

} // namespace dtensor::programs
