// SPDX-License-Identifier: BSD-3-Clause
#include "made_program.h"

#include <c10/util/StringUtil.h>
#include <caffe2/serialize/inline_container.h>

namespace dtensor::test_program {

std::string tensor(const std::string& name) {
  return R"({"as_tensor": {"name": ")" + name + R"("}})";
}

std::string number(const std::string& name) {
  return R"({"as_sym_int": {"as_name": ")" + name + R"("}})";
}

std::string integer(int64_t value) {
  return c10::str(R"({"as_int": )", value, "}");
}

std::string call(
    const std::string& target,
    const std::vector<Given>& inputs,
    const std::vector<std::string>& outputs) {
  std::vector<std::string> given;
  for (const auto& [name, value] : inputs) {
    given.push_back(R"({"name": ")" + name + R"(", "arg": )" + value + "}");
  }
  return R"({"target": ")" + target + R"(", "inputs": [)" +
      c10::Join(", ", given) + R"(], "outputs": [)" + c10::Join(", ", outputs) +
      R"(], "metadata": {"stack_trace": )"
      R"("  File \"m.py\", line 7, in forward\n    y = f(x)\n"}})";
}

std::string graph(
    const std::vector<std::string>& calls,
    const std::string& output) {
  const std::string meta =
      R"({"dtype": 7, "sizes": [{"as_int": 2}, {"as_int": 3}],)"
      R"( "requires_grad": false, "device": {"type": "cpu"}})";
  return R"({"schema_version": {"major": 8, "minor": 1}, "graph_module": {)"
         R"("graph": {"nodes": [)" +
      c10::Join(", ", calls) + R"(], "tensor_values": {"x": )" + meta +
      R"(}}, "signature": {"input_specs": [{"user_input": {"arg": )" +
      tensor("x") + R"(}}, {"user_input": {"arg": )" + number("n") +
      R"(}}], "output_specs": [{"user_output": {"arg": )" + output +
      R"(}}]}, "module_call_graph": []}, "range_constraints": {}})";
}

void write_archive(
    const std::string& path,
    const std::vector<Record>& records) {
  caffe2::serialize::PyTorchStreamWriter writer(path);
  for (const auto& [name, bytes, is_compressed] : records) {
    writer.writeRecord(name, bytes.data(), bytes.size(), is_compressed);
  }
  writer.writeEndOfFile();
}

std::string write_program(
    const std::string& path,
    const std::string& graph,
    std::vector<Record> more) {
  more.push_back({"models/model.json", graph});
  write_archive(path, more);
  return path;
}

} // namespace dtensor::test_program
