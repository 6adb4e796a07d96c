// SPDX-License-Identifier: BSD-3-Clause
// Exported programs that no exporter writes, with graphs built from text.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dtensor::test_program {

/// An argument of a call: its name, and its value in JSON.
using Given = std::pair<std::string, std::string>;

/// {"as_tensor": {"name": "x"}}.
std::string tensor(const std::string& name);
/// {"as_sym_int": {"as_name": "n"}}.
std::string number(const std::string& name);
/// {"as_int": 3}.
std::string integer(int64_t value);

/// Returns a call of `target` in line 7 of m.py. `outputs` are values in JSON.
std::string call(
    const std::string& target,
    const std::vector<Given>& inputs,
    const std::vector<std::string>& outputs);

/// Returns a graph with an input x, f32[2, 3], and a number n as input. Its
/// result is `output`.
std::string graph(
    const std::vector<std::string>& calls,
    const std::string& output = tensor("y"));

/// A record of an archive: its name without the archive's folder, and its
/// bytes.
struct Record {
  std::string name;
  std::string bytes;
  bool is_compressed = false;
};

/// Writes an archive as torch.export.save() does.
void write_archive(const std::string& path, const std::vector<Record>& records);
/// Writes an archive with that graph, and returns its path.
std::string write_program(
    const std::string& path,
    const std::string& graph,
    std::vector<Record> more = {});

} // namespace dtensor::test_program
