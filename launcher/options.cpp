// SPDX-License-Identifier: BSD-3-Clause
#include "options.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdlib>
#include <sstream>

namespace launcher {
namespace {

// Returns the text, or the beginning of a long one, for errors.
std::string shortened(const std::string& text) {
  constexpr size_t kMost = 200;
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

bool is_file(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

// Returns the path at which a shell would find `name`.
std::string find_program(const std::string& name) {
  if (name.find('/') == std::string::npos) {
    const char* variable = std::getenv("PATH");
    std::istringstream folders(variable != nullptr ? variable : "");
    for (std::string folder; std::getline(folders, folder, ':');) {
      auto path = (folder.empty() ? "." : folder) + "/" + name;
      if (is_file(path) && ::access(path.c_str(), X_OK) == 0) {
        return path;
      }
    }
    throw UsageError(fmt::format(
        "program not found in PATH: {}. Pass its path, such as ./{}.",
        shortened(name),
        shortened(name)));
  }
  if (!is_file(name)) {
    throw UsageError(
        fmt::format("no such program: {}. Check its path.", shortened(name)));
  }
  if (::access(name.c_str(), X_OK) != 0) {
    throw UsageError(fmt::format(
        "the program is not executable: {}. Try chmod +x.", shortened(name)));
  }
  return name;
}

// Parses "host:port" or "[ipv6]:port".
void parse_rendezvous(const std::string& text, Options& options) {
  const auto colon = text.rfind(':');
  const char* end = text.data() + text.size();
  int port = -1;
  if (colon != std::string::npos) {
    options.host = text.substr(0, colon);
    const auto result = std::from_chars(text.data() + colon + 1, end, port);
    port = result.ec == std::errc() && result.ptr == end ? port : -1;
  }
  if (options.host.starts_with('[') && options.host.ends_with(']')) {
    options.host = options.host.substr(1, options.host.size() - 2);
  }
  constexpr size_t kLongestHost = 255; // of a name in the DNS
  if (options.host.empty() || options.host.size() > kLongestHost || port < 1 ||
      port > 65535) {
    throw UsageError(fmt::format(
        "--rdzv is not HOST:PORT: {}. Pass an address of node 0 and a port "
        "from 1 to 65535.",
        shortened(text)));
  }
  options.port = static_cast<uint16_t>(port);
}

void check_at_least(const char* option, int value, int least) {
  if (value < least) {
    throw UsageError(fmt::format(
        "{} is too small: {}. Pass at least {}.", option, value, least));
  }
}

void check_between(const char* option, int value, int least, int most) {
  check_at_least(option, value, least);
  if (value > most) {
    throw UsageError(fmt::format(
        "{} is too large: {}. Pass at most {}.", option, value, most));
  }
}

void check_numbers(const Options& options) {
  constexpr int kMostRanks = 4096; // on each node
  constexpr int kMostWorld = 1 << 20;
  constexpr int kMostSeconds = 365 * 24 * 3600;
  check_between("-n", options.ranks, 1, kMostRanks);
  check_between("--nnodes", options.nodes, 1, kMostWorld / options.ranks);
  check_at_least("--max-restarts", options.max_restarts, 0);
  check_between("--grace", options.grace, 0, kMostSeconds);
  check_between("--node-timeout", options.node_timeout, 1, kMostSeconds);
  check_between("--join-timeout", options.join_timeout, 1, kMostSeconds);
  if (options.node < 0 || options.node >= options.nodes) {
    throw UsageError(fmt::format(
        "--node-rank is out of range: {} of {} nodes. Pass 0 to {}.",
        options.node,
        options.nodes,
        options.nodes - 1));
  }
  if (options.nodes > 1 && options.port == 0) {
    throw UsageError(fmt::format(
        "--rdzv is missing: there are {} nodes. Pass --rdzv HOST:PORT, an "
        "address of node 0, on every node.",
        options.nodes));
  }
}

// Parses the options before the program, and leaves the rest in `app`.
void parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    std::exit(0);
  } catch (const CLI::ParseError& error) {
    throw UsageError(fmt::format(
        "invalid command line: {}. See dtensor-run --help.",
        shortened(error.what())));
  }
}

// Returns the command that follows the options or a "--".
std::vector<std::string> command_in(std::vector<std::string> rest) {
  if (!rest.empty() && rest[0] == "--") {
    rest.erase(rest.begin());
  } else if (!rest.empty() && rest[0].starts_with('-')) {
    throw UsageError(fmt::format(
        "no such option: {}. See dtensor-run --help.", shortened(rest[0])));
  }
  if (rest.empty()) {
    throw UsageError("no program was given. Pass it after the options.");
  }
  return rest;
}

void add_numbers(CLI::App& app, Options& options) {
  app.add_option(
         "-n,--nproc-per-node", options.ranks, "number of ranks per node")
      ->required();
  app.add_option(
      "--nnodes", options.nodes, "number of nodes; start one launcher on each");
  app.add_option("--node-rank", options.node, "index of this node, from 0");
  app.add_option(
      "--max-restarts",
      options.max_restarts,
      "maximum number of restarts of all ranks after a failure");
  app.add_option(
      "--grace",
      options.grace,
      "seconds between SIGTERM and SIGKILL (default: 5)");
  app.add_option(
      "--node-timeout",
      options.node_timeout,
      "seconds without a heartbeat until a node counts as dead (default: 30)");
  app.add_option(
      "--join-timeout",
      options.join_timeout,
      "seconds that other nodes wait for node 0 (default: 300)");
}

} // namespace

Options parse_options(int argc, char** argv) {
  CLI::App app(
      "Starts the ranks of one job. Each rank runs PROGRAM [ARGUMENTS...], "
      "given after the options.",
      "dtensor-run");
  app.prefix_command();
  Options options;
  std::string rendezvous;
  bool no_bind = false;
  bool no_prefix = false;
  add_numbers(app, options);
  app.add_option("--rdzv", rendezvous, "HOST:PORT of node 0, where it listens");
  app.add_flag("--no-bind", no_bind, "do not bind ranks to cores");
  app.add_flag(
      "--no-prefix", no_prefix, "do not prefix output lines with [rank]");
  parse(app, argc, argv);
  options.bind = !no_bind;
  options.prefix = !no_prefix;
  if (!rendezvous.empty()) {
    parse_rendezvous(rendezvous, options);
  }
  check_numbers(options);
  options.command = command_in(app.remaining());
  options.program = find_program(options.command[0]);
  return options;
}

} // namespace launcher
