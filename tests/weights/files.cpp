// SPDX-License-Identifier: BSD-3-Clause
#include "files.h"

#include <torch/torch.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>

namespace dtensor::test_weights {

Folder::Folder() {
  std::string name =
      (std::filesystem::temp_directory_path() / "weights_XXXXXX").string();
  TORCH_CHECK(::mkdtemp(name.data()) != nullptr);
  path_ = name;
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string Folder::write(const std::string& name, const std::string& bytes)
    const {
  const auto path = *this / name;
  std::filesystem::create_directories(
      std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

const WrittenFiles& written_files() {
  static const Folder folder;
  static const WrittenFiles files = [] {
    const std::string path = folder / "written";
    const auto command = std::string(DTENSOR_PYTHON) + " " + DTENSOR_TESTS_DIR +
        "/weights/write_files.py " + path + " >/dev/null 2>&1";
    const int status = std::system(command.c_str());
    const bool done = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    const bool cannot = WIFEXITED(status) && WEXITSTATUS(status) == 77;
    TORCH_CHECK(done || cannot, command, " failed: ", status);
    return done ? WrittenFiles{path, ""}
                : WrittenFiles{"", "Python has no safetensors or no gguf"};
  }();
  return files;
}

std::map<std::string, at::Tensor> saved_tensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{
      std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : torch::pickle_load(bytes).toGenericDict()) {
    tensors[item.key().toStringRef()] = item.value().toTensor();
  }
  return tensors;
}

std::string safetensors_of(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

std::string safetensors_of(const std::map<std::string, at::Tensor>& tensors) {
  std::string header;
  std::string data;
  for (const auto& [name, given] : tensors) {
    const auto tensor = given.detach().to(at::kFloat).contiguous();
    const auto begin = data.size();
    data.append(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
    std::string shape;
    for (const auto size : tensor.sizes()) {
      shape += (shape.empty() ? "" : ",") + std::to_string(size);
    }
    header += (header.empty() ? "{" : ",") + std::string("\"") + name +
        R"(":{"dtype":"F32","shape":[)" + shape + "],\"data_offsets\":[" +
        std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
  }
  return safetensors_of(header + "}", data);
}

} // namespace dtensor::test_weights
