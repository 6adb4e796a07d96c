// SPDX-License-Identifier: BSD-3-Clause
#include "output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <climits>

namespace launcher {
namespace {

constexpr size_t kChunk = 1 << 16;
constexpr size_t kLongest = 1 << 20;
constexpr size_t kMostPending = 1 << 20;

bool is_pipe(int fd) {
  struct stat status = {};
  return ::fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode);
}

bool same_file(int one, int other) {
  struct stat a = {};
  struct stat b = {};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 &&
      a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Opens a pipe or terminal again, without blocking. Setting O_NONBLOCK on `fd`
// would affect all processes that share it. Returns an empty Fd on failure.
Fd reopen(int fd) {
  if (!is_pipe(fd) && ::isatty(fd) == 0) {
    return Fd();
  }
  const auto path = fmt::format("/proc/self/fd/{}", fd);
  constexpr int kFlags = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  return Fd(::open(path.c_str(), kFlags));
}

bool writable(int fd) {
  pollfd polled = {fd, POLLOUT, 0};
  return ::poll(&polled, 1, 0) > 0;
}

// Returns complete lines, or a portion of a longer line. A pipe takes this much
// atomically, and without blocking if poll() has found it writable.
std::string_view first_lines(std::string_view text) {
  const auto most = text.substr(0, PIPE_BUF);
  const auto size = most.rfind('\n') + 1; // 0 if no line ends here
  return size > 0 ? most.substr(0, size) : most;
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

Stream::Stream(int fd) : inherited_(fd), own_(reopen(fd)) {}

int Stream::fd() const {
  return own_.get() >= 0 ? own_.get() : inherited_;
}

bool Stream::full() const {
  return text_.size() > kMostPending;
}

void Stream::append(std::string_view text) {
  if (!closed_) {
    text_ += text;
  }
}

void Stream::write() {
  std::string_view left = text_;
  while (!left.empty() && writable(fd())) {
    const auto lines = first_lines(left);
    const ssize_t count = ::write(fd(), lines.data(), lines.size());
    if (count >= 0) {
      left.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN || errno == EINTR) {
      break;
    } else {
      closed_ = errno == EPIPE;
      left = {}; // lost, such as on a full disk
    }
  }
  text_.erase(0, text_.size() - left.size());
}

Output::Output() {
  if (!same_file(STDOUT_FILENO, STDERR_FILENO)) {
    err_.emplace(STDERR_FILENO);
  }
}

Stream& Output::stream_of(int target) {
  return target == STDERR_FILENO && err_ ? *err_ : out_;
}

Fd Output::add(int rank, int target) {
  int ends[2];
  checked(::pipe2(ends, O_CLOEXEC), "cannot make a pipe");
  Fd write_end(ends[1]);
  sources_.push_back(
      {Fd(ends[0]), stream_of(target), fmt::format("[{}] ", rank), {}});
  checked(
      ::fcntl(ends[0], F_SETFL, O_NONBLOCK), "cannot make a pipe non-blocking");
  return write_end;
}

void Output::print(int target, std::string_view text) {
  stream_of(target).append(text);
  write();
}

void Output::append_to(std::vector<pollfd>& polled) const {
  for (const auto& source : sources_) {
    if (!source.stream.full()) {
      polled.push_back({source.fd.get(), POLLIN, 0});
    }
  }
  for (const Stream* stream : {&out_, err_ ? &*err_ : nullptr}) {
    if (stream != nullptr && stream->pending()) {
      polled.push_back({stream->fd(), POLLOUT, 0});
    }
  }
}

// Reads one chunk only, so that a rank with much output does not starve the
// others.
bool Output::read(Source& source) {
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
  source.stream.append(take_lines(source.prefix, source.rest));
  if (ended) {
    source.fd = Fd();
  }
  return count > 0;
}

bool Output::read_all() {
  bool some = false;
  for (auto& source : sources_) {
    some = read(source) || some;
  }
  return some;
}

void Output::write() {
  out_.write();
  if (err_) {
    err_->write();
  }
  sources_.remove_if([](const Source& source) {
    return source.fd.get() < 0 || source.stream.closed();
  });
}

void Output::pump() {
  for (auto& source : sources_) {
    if (!source.stream.full()) {
      read(source);
    }
  }
  write();
}

void Output::finish() {
  // Reads a bounded amount, because a process that a rank left running may
  // print forever.
  for (size_t bytes = 0; bytes < kLongest && read_all(); bytes += kChunk) {
  }
  for (auto& source : sources_) {
    source.rest += source.rest.empty() ? "" : "\n";
    source.stream.append(take_lines(source.prefix, source.rest));
  }
  sources_.clear();
  write();
}

bool Output::pending() const {
  return out_.pending() || (err_ && err_->pending());
}

} // namespace launcher
