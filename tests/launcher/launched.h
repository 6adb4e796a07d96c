// SPDX-License-Identifier: BSD-3-Clause
// A dtensor-run under way, for tests.
//
//   Launched job({"-n", "2", "sh", "-c", "echo $RANK"});
//   EXPECT_EQ(job.finish(), 0);
//   EXPECT_THAT(job.lines(), UnorderedElementsAre("[0] 0", "[1] 1"));
//
// No test measures time: whatever is waited for is given a minute, and a job
// that takes longer is killed and fails its test.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace launcher {

class Launched {
 public:
  // `program` instead of dtensor-run, with these arguments.
  explicit Launched(
      const std::vector<std::string>& arguments,
      const std::string& program = DTENSOR_RUN);
  ~Launched();
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  void signal(int signal) const;
  // Until `text` is in its output.
  void wait_for(const std::string& text);
  // Until it has ended; how, as a shell has it.
  int finish();

  const std::string& out() const {
    return out_;
  }
  const std::string& err() const {
    return err_;
  }
  // Of its output.
  std::vector<std::string> lines() const;
  // What follows `label` in each line that has it.
  std::vector<std::string> values(const std::string& label) const;

 private:
  // Reads what comes within a moment. False at the end of both streams.
  bool read_some();

  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::string out_;
  std::string err_;
};

// sh -c `script` on `ranks` ranks, after these options.
std::vector<std::string> on_ranks(
    int ranks,
    const std::string& script,
    std::vector<std::string> options = {});

// Whether the processes are gone, after at most a minute.
bool all_gone(const std::vector<std::string>& pids);

// How this host is called in messages.
std::string host_name();

} // namespace launcher
