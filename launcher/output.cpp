// SPDX-License-Identifier: BSD-3-Clause
#include "output.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <string_view>

namespace launcher {
namespace {

constexpr size_t kChunk = 1 << 16;
constexpr size_t kLongest = 1 << 20;

// Writes all of `text`, even if the terminal or pipe is slow or non-blocking.
void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      pollfd writable = {fd, POLLOUT, 0};
      ::poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      return; // the reader has closed its end
    }
  }
}

// Removes the complete lines from `text` and returns them, each with the
// prefix.
std::string take_lines(const std::string& prefix, std::string& text) {
  std::string lines;
  size_t begin = 0;
  for (auto end = text.find('\n'); end != std::string::npos;
       end = text.find('\n', begin)) {
    lines.append(prefix).append(text, begin, end + 1 - begin);
    begin = end + 1;
  }
  text.erase(0, begin);
  return lines;
}

} // namespace

Fd Output::add(int rank, int target) {
  int ends[2];
  checked(::pipe2(ends, O_CLOEXEC), "cannot make a pipe");
  Fd write_end(ends[1]);
  sources_.push_back({Fd(ends[0]), target, fmt::format("[{}] ", rank), {}});
  checked(
      ::fcntl(ends[0], F_SETFL, O_NONBLOCK), "cannot make a pipe non-blocking");
  return write_end;
}

void Output::append_to(std::vector<pollfd>& polled) const {
  for (const auto& source : sources_) {
    polled.push_back({source.fd.get(), POLLIN, 0});
  }
}

// Reads one chunk only, so that a rank with much output does not starve the
// others.
bool Output::pump(Source& source) {
  const size_t had = source.rest.size();
  source.rest.resize(had + kChunk);
  const ssize_t count =
      ::read(source.fd.get(), source.rest.data() + had, kChunk);
  source.rest.resize(had + static_cast<size_t>(count > 0 ? count : 0));
  const bool ended = count == 0;
  const bool partial = ended || source.rest.size() > kLongest;
  if (partial && !source.rest.empty() && source.rest.back() != '\n') {
    source.rest += '\n';
  }
  write_all(source.target, take_lines(source.prefix, source.rest));
  if (ended) {
    source.fd = Fd();
  }
  return count > 0;
}

bool Output::pump() {
  bool some = false;
  for (auto& source : sources_) {
    some = pump(source) || some;
  }
  sources_.remove_if([](const Source& source) { return source.fd.get() < 0; });
  return some;
}

void Output::finish() {
  // Reads a bounded amount, because a process that a rank left running may
  // print forever.
  for (size_t read = 0; read < kLongest && pump(); read += kChunk) {
  }
  for (auto& source : sources_) {
    source.rest += source.rest.empty() ? "" : "\n";
    write_all(source.target, take_lines(source.prefix, source.rest));
  }
  sources_.clear();
}

} // namespace launcher
