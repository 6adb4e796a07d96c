// SPDX-License-Identifier: BSD-3-Clause
// Reader of one graph of an exported program, at the top level or nested.
#pragma once

#include <dtensor/program/read_graph_impl.h>
#include <dtensor/weights/json_document_impl.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dtensor::detail {

/// Adds the contents of a JSON graph to a Graph. Names of values are local to
/// one graph; a nested graph has its own names.
class GraphReader final : public ArgumentContext {
 public:
  /// `tensors` describes the graph's tensors, by name.
  GraphReader(
      const ProgramOrigin& origin,
      c10::DeviceType exported_for,
      std::optional<JsonView> tensors,
      Graph& graph)
      : origin_(origin),
        exported_for_(exported_for),
        tensors_(tensors),
        graph_(graph) {}

  void read_signature(JsonView signature);
  void read_nodes(JsonView nodes);
  void read_outputs(JsonView signature);

  Slot find(JsonView name, ValueKind kind) const override;
  c10::Device device() const override {
    return origin_.device;
  }
  c10::DeviceType exported_for() const override {
    return exported_for_;
  }

 private:
  struct Value {
    Slot slot = 0;
    ValueKind kind = ValueKind::kTensor;
  };

  [[noreturn]] void throw_of(const std::string& what) const override;
  Slot define(const std::string& name, ValueKind kind);

  void read_output(const std::string& kind, JsonView spec);
  void add_mutation(JsonView spec, InputKind kind, const char* key);

  void read_call(JsonView call);
  void read_scalar_call(
      JsonView call,
      const ScalarSignature& signature,
      GraphNode& node);
  void read_dtype_check(JsonView call);
  void read_operator(JsonView call, const std::string& target, GraphNode& node);
  c10::OperatorHandle operator_of(const std::string& target) const;
  void read_arguments(
      JsonView call,
      const c10::FunctionSchema& schema,
      GraphNode& node);
  /// Reads the results listed in `returns`. A null `returns` stands for a
  /// single number.
  void read_results(
      JsonView call,
      const std::vector<c10::Argument>* returns,
      GraphNode& node);
  Result read_result(const JsonMember& output, const c10::Type* type);

  void read_scope(JsonView call, const ScopedGraph& scoped);
  const Value& value_of(JsonView operand) const;

  const ProgramOrigin& origin_;
  c10::DeviceType exported_for_;
  std::optional<JsonView> tensors_;
  std::optional<JsonView> call_; // call that is being read
  Graph& graph_;
  std::map<std::string, Value> values_;  // by name
  std::map<std::string, size_t> inputs_; // in Graph::inputs, by name
};

/// Returns the text of a member, or an empty text if the member is missing.
std::string text_or_empty(JsonView object, const char* key);

/// Returns the device for "cpu" or "cuda". Throws ValueError for other texts.
c10::Device read_device(JsonView name);

} // namespace dtensor::detail
