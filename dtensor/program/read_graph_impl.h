// SPDX-License-Identifier: BSD-3-Clause
// From the JSON of an exported program to its graph.
#pragma once

#include <dtensor/program/graph_impl.h>

#include <c10/core/Device.h>
#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string>

namespace dtensor::detail {

/// What messages say of the file that is read.
struct ProgramOrigin {
  std::string path;
  /// Where the program is to run; it was exported for any device.
  c10::Device device = c10::kCPU;
};

/// Throws ValueError with the file's name for text that is no program, or of
/// another version of the format; NotImplementedError, with its line in the
/// Python source, for a call that cannot be run.
Graph read_graph(const std::string& json, const ProgramOrigin& origin);

/// The value of {"as_int": 3} for an argument of `type`. `find` gives the slot
/// of a value by its name. Throws nlohmann::json::exception for another text,
/// std::invalid_argument, which says what it is, for what cannot be taken.
Operand read_operand(
    const nlohmann::json& argument,
    const c10::TypePtr& type,
    const c10::Device& device,
    const std::function<Slot(const std::string&)>& find);

/// The function that the graph calls `target` ("_operator.mul",
/// "torch.ops.aten.sym_size.int"); null if it is none of numbers.
ScalarFunction scalar_function(const std::string& target);

} // namespace dtensor::detail
