// SPDX-License-Identifier: BSD-3-Clause
#include "program.h"

#include <ATen/ATen.h>
#include <dtensor/layout/text.h>

#include <optional>
#include <sstream>

#include "machine.h"
#include "operators.h"
#include "tests/randomized/harness/random.h"

namespace dtensor::programs {
namespace {

using randomized::Random;

const char* name_of(InputKind kind) {
  static const char* const names[] = {
      "leaf", "value", "buffer", "plain", "ids"};
  return names[static_cast<size_t>(kind)];
}

const char* name_of(ModuleKind kind) {
  static const char* const names[] = {
      "colwise", "rowwise", "norm", "embedding", "mlp", "siblings"};
  return names[static_cast<size_t>(kind)];
}

Placements draw_layout(const Input& input, size_t mesh_ndim, Random& random) {
  Placements layout;
  const auto ndim = static_cast<int64_t>(input.sizes.size());
  for (size_t m = 0; m < mesh_ndim; ++m) {
    const auto draw = random.below(10);
    const bool partial = draw >= 9 && input.kind == InputKind::kLeaf;
    const bool sum = draw >= 8 && input.kind == InputKind::kValue;
    layout.push_back(
        draw < 6             ? Placement(Shard(random.below(ndim)))
            : partial || sum ? Placement(Partial(ReduceOp::kSum))
                             : Placement(Replicate()));
  }
  return layout;
}

Input draw_input(InputKind kind, size_t mesh_ndim, Random& random) {
  static const std::vector<Sizes> shapes = {
      {4, 6}, {4, 6}, {6, 6}, {2, 3, 6}, {2, 4, 6}, {6}, {5, 6}, {6, 2}};
  static const std::vector<Sizes> ids = {{4}, {2, 3}};
  Input input;
  input.kind = kind;
  input.sizes = random.one_of(kind == InputKind::kIds ? ids : shapes);
  input.layout = draw_layout(input, mesh_ndim, random);
  return input;
}

void draw_declarations(Program& program, Random& random) {
  static const std::vector<Sizes> meshes = {{2}, {2}, {3}, {2, 2}};
  program.mesh = random.one_of(meshes);
  const auto add = [&](InputKind kind) {
    program.inputs.push_back(draw_input(kind, program.mesh.size(), random));
  };
  add(InputKind::kLeaf);
  add(InputKind::kValue);
  add(random.chance(50) ? InputKind::kBuffer : InputKind::kLeaf);
  if (program.mesh.size() > 1) {
    return;
  }
  if (random.chance(50)) {
    add(InputKind::kPlain);
  }
  static const std::vector<ModuleKind> kinds = {
      ModuleKind::kColwise,
      ModuleKind::kRowwise,
      ModuleKind::kNorm,
      ModuleKind::kMlp,
      ModuleKind::kMlp};
  for (auto n = random.below(3); n > 0; --n) {
    program.modules.push_back(random.one_of(kinds));
  }
  if (random.chance(40)) {
    add(InputKind::kBuffer);
    program.modules.push_back(ModuleKind::kSiblings);
  }
  if (random.chance(20)) {
    add(InputKind::kIds);
    program.modules.push_back(ModuleKind::kEmbedding);
  }
}

std::string draw_operator(OperatorKind kind, Random& random) {
  while (true) {
    const auto& op = random.one_of(operators());
    if (op.kind == kind) {
      return op.name;
    }
  }
}

std::string draw_name(const Program& program, Random& random) {
  const auto draw = random.below(100);
  if (draw < 14 && !program.modules.empty()) {
    return "call";
  }
  if (draw < 22) {
    return "backward";
  }
  static const std::vector<std::string> others = {
      "grad",
      "grad",
      "grad",
      "no_grad",
      "inference",
      "refill",
      "refill",
      "refill",
      "redistribute",
      "redistribute",
      "gradient",
      "zero_grad",
      "sgd",
      "sgd"};
  if (draw < 36) {
    return random.one_of(others);
  }
  const auto kind = draw < 62 ? OperatorKind::kView
      : draw < 82             ? OperatorKind::kWrite
                              : OperatorKind::kValue;
  return draw_operator(kind, random);
}

size_t arity_of(const std::string& name) {
  const auto* op = find_operator(name);
  const bool none = name == "grad" || name == "no_grad" ||
      name == "inference" || name == "zero_grad" || name == "sgd";
  return op != nullptr ? op->arity : none ? 0 : name == "gradient" ? 2 : 1;
}

ModuleKind called_by(const Program& program, const Step& step) {
  return program
      .modules[static_cast<size_t>(step.numbers[0]) % program.modules.size()];
}

bool fits(const Program& program, const Step& step, const at::Tensor& t) {
  if (step.op == "call") {
    const auto kind = called_by(program, step);
    return t.dim() > 0 &&
        (kind == ModuleKind::kEmbedding
             ? t.scalar_type() == at::kLong
             : t.size(-1) == 6 && t.scalar_type() == at::kDouble) &&
        (kind != ModuleKind::kNorm || t.dim() == 3);
  }
  return true;
}

bool is_memory(const Program& program, int id) {
  const auto i = static_cast<size_t>(id);
  return i < program.inputs.size() &&
      (program.inputs[i].kind == InputKind::kBuffer ||
       program.inputs[i].kind == InputKind::kPlain);
}

// Draws a variable; newer variables are more likely.
int draw_variable(Machine& machine, Random& random) {
  std::vector<int> ids;
  for (const auto& [id, t] : machine.variables()) {
    ids.insert(ids.end(), ids.size() > 3 ? 2 : 1, id);
  }
  return random.one_of(ids);
}

int last_buffer(const Program& program) {
  auto id = static_cast<int>(program.inputs.size()) - 1;
  while (program.inputs[static_cast<size_t>(id)].kind != InputKind::kBuffer) {
    --id;
  }
  return id;
}

// Returns the last call of a sibling. Before the first, returns a call on the
// buffer that belongs to the siblings.
std::optional<Step> last_sibling_call(const Program& program) {
  for (auto it = program.steps.rbegin(); it != program.steps.rend(); ++it) {
    if (it->op == "call" && called_by(program, *it) == ModuleKind::kSiblings) {
      return *it;
    }
  }
  for (size_t i = 0; i < program.modules.size(); ++i) {
    if (program.modules[i] == ModuleKind::kSiblings) {
      const auto module = static_cast<int64_t>(i);
      return Step{"call", -1, {last_buffer(program)}, {module, 0, 0, 0}};
    }
  }
  return std::nullopt;
}

// Draws a call to follow, or nothing for an arbitrary step. Siblings share
// results for their input, which must not outlive a write to it. Therefore a
// sibling's call, a write to the same variable and the next sibling's call are
// drawn more often than by chance.
std::optional<Step> draw_call_to_follow(
    const Program& program,
    Random& random) {
  return random.chance(40) ? last_sibling_call(program) : std::nullopt;
}

std::string
draw_name_after(const Step& call, const Program& program, Random& random) {
  const bool just_called =
      !program.steps.empty() && program.steps.back().out == call.out;
  return random.chance(just_called ? 25 : 75) ? "call"
      : is_memory(program, call.from[0]) && random.chance(50)
      ? "refill"
      : draw_operator(OperatorKind::kWrite, random);
}

// Draws a step without its operands.
Step draw_bare_step(
    const Program& program,
    const std::optional<Step>& after,
    Random& random) {
  Step step;
  step.op = after ? draw_name_after(*after, program, random)
                  : draw_name(program, random);
  for (auto& n : step.numbers) {
    n = random.below(720);
  }
  if (after && step.op == "call") {
    step.numbers[0] = after->numbers[0];
    step.numbers[1] = after->numbers[1] + 1;
  }
  return step;
}

// Draws an operand. Modules are called on inputs more often than other steps.
int draw_operand(
    const Program& program,
    const Step& step,
    Machine& machine,
    Random& random) {
  if (step.op == "call" && random.chance(50)) {
    const auto count = static_cast<int64_t>(program.inputs.size());
    return static_cast<int>(random.below(count));
  }
  return draw_variable(machine, random);
}

std::optional<Step>
draw_step(const Program& program, Machine& machine, int out, Random& random) {
  const auto after = draw_call_to_follow(program, random);
  auto step = draw_bare_step(program, after, random);
  step.out = out;
  for (size_t i = 0; i < arity_of(step.op); ++i) {
    step.from.push_back(
        after && i == 0 ? after->from[0]
                        : draw_operand(program, step, machine, random));
    const auto found = machine.variables().find(step.from.back());
    if (found == machine.variables().end() ||
        !fits(program, step, found->second)) {
      return std::nullopt;
    }
  }
  if (step.op == "refill" && !is_memory(program, step.from[0])) {
    return std::nullopt;
  }
  if (step.op == "gradient") {
    step.from[1] = 0; // the first input is a leaf
  }
  return step;
}

} // namespace

Program draw_program(uint64_t seed) {
  Random random(seed);
  Program program;
  program.seed = seed;
  draw_declarations(program, random);
  Machine machine(program, std::nullopt);
  const auto wanted = static_cast<size_t>(5 + random.below(21));
  auto out = static_cast<int>(program.inputs.size());
  for (int tries = 0; program.steps.size() < wanted && tries < 400; ++tries) {
    const auto step = draw_step(program, machine, out, random);
    if (!step || !machine.can_run(*step)) {
      continue;
    }
    try {
      machine.run(*step);
    } catch (const c10::Error&) {
      continue; // not meaningful on plain tensors
    }
    program.steps.push_back(*step);
    ++out;
  }
  return program;
}

std::string Program::text() const {
  std::ostringstream text;
  text << "seed " << seed << " on mesh (" << c10::Join(", ", mesh) << ")\n";
  for (size_t i = 0; i < inputs.size(); ++i) {
    text << "  v" << i << " = " << name_of(inputs[i].kind) << " ["
         << c10::Join(", ", inputs[i].sizes) << "]";
    if (inputs[i].kind != InputKind::kPlain) {
      text << " " << to_string(inputs[i].layout);
    }
    text << "\n";
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    text << "  module " << i << " = " << name_of(modules[i]) << "\n";
  }
  for (const auto& step : steps) {
    text << "  v" << step.out << " = " << step.op << "(";
    for (size_t i = 0; i < step.from.size(); ++i) {
      text << (i == 0 ? "v" : ", v") << step.from[i];
    }
    text << ") with " << c10::Join(", ", step.numbers) << "\n";
  }
  return text.str();
}

} // namespace dtensor::programs
