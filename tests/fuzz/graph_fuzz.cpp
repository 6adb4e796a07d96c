// SPDX-License-Identifier: BSD-3-Clause
// Reads any bytes as the graph of an exported program. Expects an error that
// names the file, or a graph with functions of numbers that run.
#include <dtensor/program/interpreter_impl.h>
#include <dtensor/program/read_graph_impl.h>

#include "fuzz.h"

#include <ATen/ops/ones.h>

namespace dtensor {
namespace {

using detail::Slot;

bool is_known(
    const detail::GraphNode& node,
    const std::vector<c10::IValue>& values) {
  bool known = true;
  for (const auto& arg : node.args) {
    detail::visit_slots(
        arg, [&](Slot slot) { known = known && !values[slot].isNone(); });
  }
  return known;
}

// Runs only functions of numbers, because operators may take any time and
// memory.
void run_numbers(const detail::ProgramState& state) {
  detail::Interpreter interpreter(state);
  auto& values = interpreter.values();
  for (const auto& input : state.graph.inputs) {
    values[input.slot] =
        input.is_tensor ? c10::IValue(at::ones({2, 3})) : c10::IValue(3);
  }
  for (const auto& node : state.graph.nodes) {
    if (std::holds_alternative<detail::ScalarFunction>(node.call) &&
        is_known(node, values)) {
      interpreter.call(node);
    }
  }
}

} // namespace
} // namespace dtensor

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  using namespace dtensor;
  const std::string path = "fuzzed.pt2";
  fuzz::expect_only_errors(path, [&] {
    detail::ProgramState state;
    state.path = path;
    state.graph = detail::read_graph(
        std::string(reinterpret_cast<const char*>(bytes), count),
        {path, c10::kCPU, {}, "models/model.json"});
    run_numbers(state);
  });
  return 0;
}
