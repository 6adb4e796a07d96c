// SPDX-License-Identifier: BSD-3-Clause
#include "leftovers.h"

#include <c10/util/Exception.h>

#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

namespace dtensor::process_faults {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Texts = std::vector<std::string>;

// Variable that is set if this program runs in its own namespaces.
constexpr const char* kInside = "DTENSOR_FAULTS_INSIDE";
constexpr const char* kUnshare =
    "unshare --user --map-root-user --net --pid --ipc --mount --fork "
    "--mount-proc --kill-child ";

Texts words_of(const std::string& text) {
  std::istringstream in(text);
  Texts words;
  for (std::string word; in >> word;) {
    words.push_back(word);
  }
  return words;
}

bool has_children() {
  while (true) {
    const pid_t pid = waitpid(-1, nullptr, WNOHANG);
    if (pid <= 0) {
      return pid == 0;
    }
  }
}

// Finds other processes. In the program's own namespace, this process is number
// 1.
void add_processes(Texts& found) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (std::isdigit(static_cast<unsigned char>(name.front())) != 0 &&
        name != std::to_string(getpid())) {
      std::ifstream file(entry.path() / "comm");
      std::string what;
      std::getline(file, what);
      found.push_back("process " + name + " (" + what + ")");
    }
  }
}

// Finds open sockets. Sockets without an inode have no owner, and the kernel
// closes them.
void add_sockets(Texts& found) {
  constexpr size_t kInode = 9;
  for (const std::string table : {"tcp", "tcp6", "udp", "udp6"}) {
    std::ifstream file("/proc/net/" + table);
    std::string line;
    std::getline(file, line); // the heading
    while (std::getline(file, line)) {
      const auto words = words_of(line);
      if (words.size() > kInode && words[kInode] != "0") {
        found.push_back(table + " socket " + words[1]);
      }
    }
  }
  std::ifstream file("/proc/net/unix");
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    found.push_back("unix socket " + line);
  }
}

void add_shared_memory(Texts& found) {
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    found.push_back(entry.path().string());
  }
  std::ifstream file("/proc/sysvipc/shm");
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    found.push_back("System V segment " + line);
  }
}

Texts what_is_there(bool inside) {
  Texts found;
  if (has_children()) {
    found.emplace_back("a process");
  }
  if (inside) {
    add_processes(found);
    add_sockets(found);
    add_shared_memory(found);
  }
  return found;
}

bool is_expected(const std::string& file) {
  return file.starts_with("out") || file.ends_with(".txt") ||
      file.ends_with(".json");
}

} // namespace

void enter_namespaces(int argc, char** argv) {
  if (std::system((std::string(kUnshare) + "true 2> /dev/null").c_str()) != 0) {
    return;
  }
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  auto words = words_of(kUnshare);
  words.push_back(self);
  words.insert(words.end(), argv + 1, argv + argc);
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  setenv(kInside, "1", /*overwrite=*/1);
  execvp(arguments[0], arguments.data());
}

bool is_inside() {
  return std::getenv(kInside) != nullptr;
}

void furnish() {
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  std::strncpy(request.ifr_name, "lo", IFNAMSIZ - 1);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  TORCH_CHECK(ioctl(fd, SIOCSIFFLAGS, &request) == 0, "no loopback interface");
  close(fd);
  TORCH_CHECK(
      mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr) == 0, "no /dev/shm");
}

void adopt_orphans() {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

std::vector<std::string> leftovers(bool inside) {
  constexpr auto kMoment = 10s;
  const auto deadline = std::chrono::steady_clock::now() + kMoment;
  Texts found = what_is_there(inside);
  while (!found.empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(20ms);
    found = what_is_there(inside);
  }
  return found;
}

std::vector<std::string> clear_folder(const fs::path& folder) {
  Texts found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (!is_expected(name)) {
      found.push_back("file " + name);
    }
    fs::remove_all(entry.path());
  }
  return found;
}

} // namespace dtensor::process_faults
