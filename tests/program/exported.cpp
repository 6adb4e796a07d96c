// SPDX-License-Identifier: BSD-3-Clause
#include "exported.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
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

// A lock across processes.
class Lock {
 public:
  explicit Lock(const std::string& path)
      : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    TORCH_CHECK(file_ >= 0 && ::flock(file_, LOCK_EX) == 0, path);
  }
  ~Lock() {
    ::close(file_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int file_;
};

// Returns the folder of exported programs. They are written once for all test
// processes, and again after the script has changed.
std::string exported_folder() {
  namespace fs = std::filesystem;
  const std::string script =
      std::string(DTENSOR_TESTS_DIR) + "/program/export_models.py";
  const std::string folder = std::string(DTENSOR_EXPORTED) + "/";
  fs::create_directories(folder);
  const Lock lock(folder + "lock");
  const auto done = folder + "done";
  if (!fs::exists(done) ||
      fs::last_write_time(done) < fs::last_write_time(script)) {
    const auto command =
        std::string(DTENSOR_PYTHON) + " " + script + " " + folder;
    TORCH_CHECK(std::system(command.c_str()) == 0, command, " failed");
  }
  return folder;
}

} // namespace

std::string exported(const std::string& name) {
  static const std::string folder = exported_folder();
  return folder + name + ".pt2";
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
