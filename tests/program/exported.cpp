// SPDX-License-Identifier: BSD-3-Clause
#include "exported.h"

#include "tests/weights/files.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace dtensor::test_program {
namespace {

std::map<std::string, at::Tensor> map_of(const c10::IValue& value) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : value.toGenericDict()) {
    tensors[item.key().toStringRef()] = item.value().toTensor();
  }
  return tensors;
}

} // namespace

std::string exported(const std::string& name) {
  static const test_weights::Folder folder;
  static const bool done = [] {
    const auto command = std::string(DTENSOR_PYTHON) + " " + DTENSOR_TESTS_DIR +
        "/program/export_models.py " + (folder / "");
    TORCH_CHECK(std::system(command.c_str()) == 0, command, " failed");
    return true;
  }();
  TORCH_CHECK(done);
  return folder / (name + ".pt2");
}

std::vector<at::Tensor> tensors_of(const c10::IValue& list) {
  std::vector<at::Tensor> tensors;
  for (const auto& item : list.toListRef()) {
    tensors.push_back(item.toTensor());
  }
  return tensors;
}

c10::IValue unpickled(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{
      std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return torch::pickle_load(bytes);
}

std::vector<PythonRun> python_runs(const std::string& name) {
  auto path = exported(name);
  path.pop_back(); // .pt
  std::vector<PythonRun> runs;
  const auto all = unpickled(path);
  for (const auto& run : all.toListRef()) {
    const auto about = run.toGenericDict();
    runs.push_back(
        {tensors_of(about.at("inputs")),
         tensors_of(about.at("outputs")),
         map_of(about.at("gradients")),
         map_of(about.at("buffers"))});
  }
  return runs;
}

} // namespace dtensor::test_program
