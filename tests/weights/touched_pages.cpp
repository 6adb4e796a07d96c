// SPDX-License-Identifier: BSD-3-Clause
#include "touched_pages.h"

#include <c10/util/Exception.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace dtensor::test_weights {
namespace {

struct Range {
  uintptr_t begin;
  uintptr_t end;
};

// Data of the signal handler.
std::vector<Range> watched;
std::atomic<size_t> touched = 0;
struct sigaction before {};

// Another thread may fault on the same page; mprotect then succeeds again.
void note(int number, siginfo_t* about, void* context) {
  const auto page = static_cast<uintptr_t>(page_size());
  const auto at = reinterpret_cast<uintptr_t>(about->si_addr) / page * page;
  const bool is_ours =
      std::any_of(watched.begin(), watched.end(), [&](const Range& range) {
        return range.begin <= at && at < range.end;
      });
  if (is_ours &&
      ::mprotect(reinterpret_cast<void*>(at), page, PROT_READ) == 0) {
    ++touched;
    return;
  }
  ::sigaction(SIGSEGV, &before, nullptr); // another page: fault again
  static_cast<void>(number);
  static_cast<void>(context);
}

void protect(int protection) {
  for (const auto& range : watched) {
    ::mprotect(
        reinterpret_cast<void*>(range.begin),
        range.end - range.begin,
        protection);
  }
}

} // namespace

size_t page_size() {
  return static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

TouchedPages::TouchedPages(const std::string& path) {
  const auto name = std::filesystem::canonical(path).string();
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(" " + name)) {
      Range range{};
      char dash = 0;
      std::istringstream(line) >> std::hex >> range.begin >> dash >> range.end;
      watched.push_back(range);
    }
  }
  TORCH_CHECK(!watched.empty(), path, " is not mapped");
  touched = 0;
  struct sigaction action {};
  action.sa_sigaction = note;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGSEGV, &action, &before);
  protect(PROT_NONE);
}

TouchedPages::~TouchedPages() {
  protect(PROT_READ);
  watched.clear();
  ::sigaction(SIGSEGV, &before, nullptr);
}

size_t TouchedPages::bytes() const {
  return touched * page_size();
}

} // namespace dtensor::test_weights
