// SPDX-License-Identifier: BSD-3-Clause
// Launched: a running dtensor-run, for tests.
//
//   Launched job({"-n", "2", "sh", "-c", "echo $RANK"});
//   EXPECT_EQ(job.finish(), 0);
//   EXPECT_THAT(job.lines(), UnorderedElementsAre("[0] 0", "[1] 1"));
//
// No test measures time. Every wait has a limit of one minute; a job that takes
// longer is killed and its test fails.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace launcher {

class Launched {
 public:
  // Starts `program`, by default dtensor-run, with these arguments.
  explicit Launched(
      const std::vector<std::string>& arguments,
      const std::string& program = DTENSOR_RUN);
  ~Launched();
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  void signal(int signal) const;
  // Stops or resumes reading the output (not the errors).
  void read_output(bool enabled);
  // Waits until the output contains `text`.
  void wait_for(const std::string& text);
  // Waits until the errors contain `text`.
  void wait_for_error(const std::string& text);
  // Waits for the end. Returns the exit status as a shell reports it.
  int finish();

  const std::string& out() const {
    return out_;
  }
  const std::string& err() const {
    return err_;
  }
  // Returns the lines of the output.
  std::vector<std::string> lines() const;
  // Returns the text after `label` in each line that contains it.
  std::vector<std::string> values(const std::string& label) const;

 private:
  // Reads the output that arrives within a short time. Returns false at the end
  // of all streams that are read.
  bool read_some();
  void wait_for(const std::string& text, const std::string& stream);

  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  bool reads_output_ = true;
  std::string out_;
  std::string err_;
};

// Returns arguments that run sh -c `script` on `ranks` ranks, after the given
// options.
std::vector<std::string> on_ranks(
    int ranks,
    const std::string& script,
    std::vector<std::string> options = {});

// Returns true if the processes have ended, after waiting for at most a minute.
bool all_gone(const std::vector<std::string>& pids);

// Returns this host's name as messages show it.
std::string host_name();

} // namespace launcher
