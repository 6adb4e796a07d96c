// SPDX-License-Identifier: BSD-3-Clause
#include "trial.h"

#include <c10/util/StringUtil.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/ops/registry.h>
#include <dtensor/tensor/dtensor.h>
#include <torch/torch.h>

#include <mutex>
#include <regex>

namespace dtensor::property {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Results {
  Tensors values;
  Tensors grads; // by operand; undefined for operands without a gradient
};

c10::OperatorHandle find_operator(const std::string& op) {
  const auto name = parse_operator_name(op);
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.name.c_str(), name.overload_name.c_str());
}

bool writes_self(const c10::FunctionSchema& schema) {
  const auto* alias = schema.arguments()[0].alias_info();
  return alias != nullptr && alias->isWrite();
}

Tensors tensors_in(const torch::jit::Stack& stack) {
  Tensors tensors;
  for (const auto& value : stack) {
    if (value.isTensor() && value.toTensor().defined()) {
      tensors.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const auto& t : value.toTensorVector()) {
        tensors.push_back(t);
      }
    }
  }
  return tensors;
}

// Draws a shard placement, possibly with a unit, or strided as for a fused
// weight.
Placement draw_cut(const Operand& operand, Random& random) {
  const auto dim = random.below(static_cast<int64_t>(operand.sizes.size()));
  const auto kind = random.below(100);
  if (kind < 60) {
    return Shard(dim);
  }
  std::vector<int64_t> units = {2, 3};
  for (const int64_t unit : {64, 192}) {
    if (unit < operand.sizes[static_cast<size_t>(dim)]) {
      units.insert(units.end(), 4, unit); // sizes of heads
    }
  }
  const auto unit = random.one_of(units);
  return kind < 87 ? Shard(dim, unit)
      : kind < 96  ? StridedShard(dim, 2)
                   : StridedShard(dim, 2, unit);
}

Placement draw_placement(
    const Operand& operand,
    std::optional<ReduceOp>& reduce,
    Random& random) {
  const auto kind = random.below(100);
  if (kind < 65 && !operand.sizes.empty()) {
    return draw_cut(operand, random);
  }
  if (kind < 80 && operand.dtype != at::kBool) {
    static const std::vector<ReduceOp> floating = {
        ReduceOp::kSum,
        ReduceOp::kSum,
        ReduceOp::kAvg,
        ReduceOp::kMax,
        ReduceOp::kMin};
    if (!reduce) {
      reduce =
          operand.dtype == at::kLong ? ReduceOp::kSum : random.one_of(floating);
    }
    return Partial(*reduce);
  }
  return Replicate();
}

// Returns this rank's term of a partial tensor. The terms differ across ranks
// and reduce to `full`.
at::Tensor
term_of(const at::Tensor& full, const DeviceMesh& mesh, PlacementsRef layout) {
  auto term = full;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const auto& p = layout[static_cast<size_t>(m)];
    if (!p.is_partial() || mesh.size(m) == 1) {
      continue;
    }
    const auto n = mesh.size(m);
    const bool first = mesh.get_local_rank(m) == 0;
    switch (p.reduce_op()) {
      case ReduceOp::kMax:
        term = first ? term : term - 1;
        break;
      case ReduceOp::kMin:
        term = first ? term : term + 1;
        break;
      case ReduceOp::kAvg:
        term = term * (first ? n * n : -n);
        break;
      default:
        term = term * (first ? n : -1);
    }
  }
  return term;
}

at::Tensor
place(const at::Tensor& full, const DeviceMesh& mesh, PlacementsRef layout) {
  Placements cuts(layout.begin(), layout.end());
  for (auto& p : cuts) {
    p = p.is_partial() ? Replicate() : p;
  }
  FromLocalOptions options;
  options.shape = full.sizes().vec();
  return DTensor::from_local(
      to_local(distribute_tensor(
          term_of(full, mesh, layout), mesh, cuts, std::nullopt)),
      mesh,
      layout,
      options);
}

at::Tensor whole(const at::Tensor& t) {
  return t.defined() && is_dtensor(t) ? DTensor(t).full_tensor() : t;
}

// Returns a weighted sum of the results. The weights differ, so that gradients
// depend on the order of elements.
at::Tensor loss_of(const at::Tensor& value, uint64_t seed) {
  auto weight = full_operand({value.sizes().vec(), at::kDouble}, seed);
  if (is_dtensor(value)) {
    const auto mesh = DTensor(value).device_mesh();
    weight = distribute_tensor(
        weight,
        mesh,
        Placements(static_cast<size_t>(mesh.ndim()), Replicate()),
        std::nullopt);
  }
  return whole((value * weight).sum());
}

Results compute(const Case& c, const Tensors& operands, bool with_grads) {
  const auto op = find_operator(c.op);
  auto inputs = operands;
  for (auto& input : inputs) {
    input = input.detach();
    input.set_requires_grad(with_grads && input.is_floating_point());
  }
  auto given = inputs;
  if (writes_self(op.schema())) {
    given[0] = given[0].clone();
  }
  auto stack = draw_arguments(op.schema(), given, c.variant);
  op.callBoxed(&stack);
  Results results;
  results.values = tensors_in(stack);
  at::Tensor loss;
  for (size_t i = 0; i < results.values.size(); ++i) {
    const auto& value = results.values[i];
    if (value.requires_grad() && value.scalar_type() == at::kDouble) {
      const auto term = loss_of(value, 1000 + i);
      loss = loss.defined() ? loss + term : term;
    }
  }
  if (loss.defined()) {
    loss.backward();
  }
  for (const auto& input : inputs) {
    results.grads.push_back(input.grad());
  }
  return results;
}

std::string difference(const at::Tensor& mine, const at::Tensor& truth) {
  if (mine.defined() != truth.defined()) {
    // An undefined gradient counts as zero.
    const auto& there = mine.defined() ? mine : truth;
    return whole(there).abs().sum().item<double>() == 0 ? "" : "is absent";
  }
  if (!mine.defined()) {
    return "";
  }
  const auto full = whole(mine.detach());
  if (full.sizes() != truth.sizes()) {
    return c10::str("has shape ", full.sizes(), ", not ", truth.sizes());
  }
  if (full.scalar_type() != truth.scalar_type()) {
    return c10::str("is ", full.scalar_type(), ", not ", truth.scalar_type());
  }
  // Infinite values cannot be split into terms of a sum.
  const auto expected = truth.detach();
  const auto compared = expected.isinf().any().item<bool>()
      ? at::where(expected.isinf(), expected, full)
      : full;
  if (!at::allclose(compared, expected, 1e-8, 1e-9, /*equal_nan=*/true)) {
    return "differs";
  }
  return "";
}

std::string compare(const Results& mine, const Results& truth) {
  if (mine.values.size() != truth.values.size()) {
    return c10::str(mine.values.size(), " results");
  }
  for (size_t i = 0; i < truth.values.size(); ++i) {
    const auto why = difference(mine.values[i], truth.values[i]);
    if (!why.empty()) {
      return c10::str("result ", i, " ", why);
    }
  }
  for (size_t i = 0; i < truth.grads.size(); ++i) {
    const auto why = difference(mine.grads[i], truth.grads[i]);
    if (!why.empty()) {
      return c10::str("gradient ", i, " ", why);
    }
  }
  return "";
}

std::string first_line(const std::exception& e) {
  const std::string text = e.what();
  return text.substr(0, text.find('\n'));
}

// True if `error` is a single error with its place. Ranks that had not reached
// the call must not add errors of their own.
bool is_clear(const std::string& error) {
  static const std::regex failed(
      "\\[run_ranks\\] .* ranks? failed\\. "
      "(every rank|ranks? [0-9, ]+): \\[[a-z].*");
  static const std::regex another("; ranks? [0-9, ]+: ");
  return std::regex_match(error, failed) &&
      !std::regex_search(error, another) &&
      error.find("INTERNAL ASSERT") == std::string::npos &&
      error.find("[all_") == std::string::npos &&
      error.find("[reduce_scatter]") == std::string::npos;
}

Verdict run_distributed(
    const Case& c,
    const std::vector<ParsedSpec>& specs,
    const Tensors& operands,
    const Results& truth,
    bool with_grads) {
  std::mutex mutex;
  std::string wrong;
  const auto& shape = specs[0].mesh_shape;
  RunRanksOptions options;
  options.timeout = std::chrono::seconds(60);
  try {
    run_ranks(
        c10::multiply_integers(shape),
        [&](int64_t rank) {
          const auto mesh = init_device_mesh(at::kCPU, shape);
          Tensors placed;
          for (size_t i = 0; i < operands.size(); ++i) {
            placed.push_back(place(operands[i], mesh, specs[i].placements));
          }
          // The first call computes the decision, the second finds it in the
          // cache.
          for (const auto* call : {"", " when called again"}) {
            const auto why = compare(compute(c, placed, with_grads), truth);
            if (!why.empty()) {
              const std::lock_guard lock(mutex);
              wrong = c10::str(why, " on rank ", rank, call);
            }
          }
        },
        options);
  } catch (const std::exception& e) {
    const auto line = first_line(e);
    return {is_clear(line) ? Outcome::kRefused : Outcome::kWrong, line};
  }
  return {wrong.empty() ? Outcome::kRight : Outcome::kWrong, wrong};
}

} // namespace

std::string Case::text() const {
  return c10::str(op, " | ", c10::Join(" | ", specs), " | ", variant);
}

Case Case::parse(const std::string& text) {
  std::vector<std::string> parts;
  std::string rest = text;
  for (size_t at = 0; (at = rest.find(" | ")) != std::string::npos;) {
    parts.push_back(rest.substr(0, at));
    rest = rest.substr(at + 3);
  }
  TORCH_CHECK_VALUE(parts.size() >= 2, "not a case: ", text);
  return {parts[0], {parts.begin() + 1, parts.end()}, std::stoull(rest)};
}

Case draw_case(
    const std::string& op,
    const std::vector<int64_t>& mesh_shape,
    bool has_heads,
    Random& random) {
  Case c;
  c.op = op;
  for (const auto& operand :
       draw_operands(find_operator(op).schema(), random, has_heads)) {
    std::optional<ReduceOp> reduce;
    Placements layout;
    for (size_t m = 0; m < mesh_shape.size(); ++m) {
      layout.push_back(draw_placement(operand, reduce, random));
    }
    c.specs.push_back(c10::str(
        short_name(operand.dtype),
        "[",
        c10::Join(", ", operand.sizes),
        "] on (",
        c10::Join(", ", mesh_shape),
        "): ",
        to_string(PlacementsRef(layout))));
  }
  c.variant = static_cast<uint64_t>(random.below(100000));
  return c;
}

Verdict try_case(const Case& c) {
  std::vector<ParsedSpec> specs;
  Tensors operands;
  for (const auto& text : c.specs) {
    specs.push_back(parse_spec(text));
    const auto& spec = specs.back();
    operands.push_back(full_operand(
        {{spec.sizes.begin(), spec.sizes.end()}, spec.dtype},
        c.variant + operands.size()));
  }
  if (specs.empty()) {
    return {Outcome::kMalformed, "no tensors"};
  }
  for (const bool with_grads : {true, false}) {
    Results truth;
    try {
      truth = compute(c, operands, with_grads);
    } catch (const std::exception& e) {
      if (with_grads) {
        continue; // not differentiable
      }
      return {Outcome::kMalformed, first_line(e)};
    }
    return run_distributed(c, specs, operands, truth, with_grads);
  }
  return {};
}

} // namespace dtensor::property
