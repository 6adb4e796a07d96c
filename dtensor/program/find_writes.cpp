// SPDX-License-Identifier: BSD-3-Clause
// Finds values that share memory that is written to. Operator schemas state
// which results are views. Writes take effect in the order of the graph.
#include <dtensor/program/read_graph_impl.h>

#include <dtensor/ops/path/stack_impl.h>

#include <algorithm>
#include <numeric>

namespace dtensor::detail {
namespace {

const c10::FunctionSchema* schema_of(const GraphNode& node) {
  const auto* op = std::get_if<c10::OperatorHandle>(&node.call);
  return op == nullptr ? nullptr : &op->schema();
}

class Writes {
 public:
  explicit Writes(Graph& graph) : graph_(graph), first_(graph.num_slots) {
    std::iota(first_.begin(), first_.end(), 0);
  }

  void find() {
    for (const auto& node : graph_.nodes) {
      visit_aliased(node, [&](size_t, Slot slot, bool) {
        visit_results(node, [&](Slot result) { join(slot, result); });
      });
    }
    find_sharing();
    find_own_args();
  }

 private:
  // Visits arguments that the call writes, and arguments that a result may
  // view.
  template <class Visit>
  static void visit_aliased(const GraphNode& node, const Visit& visit) {
    const auto* schema = schema_of(node);
    if (schema == nullptr) {
      return;
    }
    const auto& arguments = schema->arguments();
    for (size_t i = 0; i < arguments.size() && i < node.args.size(); ++i) {
      if (arguments[i].alias_info() != nullptr) {
        visit_slots(node.args[i], [&](Slot slot) {
          visit(i, slot, is_written(arguments[i]));
        });
      }
    }
  }

  // Shortens the path to the first slot for later calls.
  Slot first_of(Slot slot) {
    while (first_[slot] != slot) {
      first_[slot] = first_[first_[slot]];
      slot = first_[slot];
    }
    return slot;
  }

  void join(Slot a, Slot b) {
    const auto [least, most] =
        std::minmax({first_of(a), first_of(b)}); // minmax of copies
    first_[most] = least;
  }

  void find_sharing() {
    std::vector<std::vector<Slot>> sharing(graph_.num_slots);
    for (Slot slot = 0; slot < graph_.num_slots; ++slot) {
      graph_.memory.push_back(first_of(slot));
      sharing[graph_.memory.back()].push_back(slot);
    }
    for (auto& slots : sharing) {
      sharing_.push_back(
          std::make_shared<const std::vector<Slot>>(std::move(slots)));
    }
    is_inputs_.resize(graph_.num_slots);
    for (const auto& input : graph_.inputs) {
      is_inputs_[first_of(input.slot)] = true;
    }
  }

  // Walks from the last call to the first, so that `later` holds the values
  // written after each call.
  void find_own_args() {
    std::vector<bool> later(graph_.num_slots, false); // by a set's first slot
    for (auto node = graph_.nodes.rbegin(); node != graph_.nodes.rend();
         ++node) {
      visit_aliased(*node, [&](size_t arg, Slot slot, bool writes) {
        if (writes) {
          node->written.push_back(sharing_[first_of(slot)]);
        }
        if (writes || later[first_of(slot)]) {
          add_in_place_arg(*node, arg, slot);
        }
      });
      for (const auto& shared : node->written) {
        later[shared->front()] = true;
      }
    }
  }

  // Adds an argument to in_place_args. The memory of an input belongs to the
  // caller. Its `sharing` is therefore null, and it is never replaced.
  void add_in_place_arg(GraphNode& node, size_t arg, Slot slot) {
    const auto first = first_of(slot);
    node.in_place_args.push_back(
        {arg, is_inputs_[first] ? nullptr : sharing_[first]});
  }

  Graph& graph_;
  std::vector<Slot> first_; // of slots with the same memory
  // For each first slot: all slots that share its memory, and true for the
  // memory of inputs.
  std::vector<SharedSlots> sharing_;
  std::vector<bool> is_inputs_;
};

} // namespace

void find_writes(Graph& graph) {
  Writes(graph).find();
}

} // namespace dtensor::detail
