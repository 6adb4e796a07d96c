// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/failure_reporting_backend_impl.h>

#include <dtensor/comm/backend/message_of_impl.h>
#include <dtensor/comm/backend_layer.h>
#include <dtensor/error.h>

#include <exception>
#include <memory>
#include <utility>

namespace dtensor::detail {
namespace {

// Ends the message with exactly one period.
std::string sentence(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) {
    text.pop_back();
  }
  return text.empty() || text.back() == '.' ? text : text + ".";
}

// Splits "[where] what" into `where` and `what`. `where` is `name` if the
// message has no prefix.
std::pair<std::string, std::string> split_message(
    const std::string& text,
    std::string_view name) {
  const size_t end = text.find("] ");
  return text.starts_with("[") && end != std::string::npos
      ? std::pair(text.substr(1, end - 1), text.substr(end + 2))
      : std::pair(std::string(name), text);
}

// Returns the text of the exception being handled. Rethrows errors of
// arguments.
std::string text_of_caught() {
  try {
    throw;
  } catch (const c10::ValueError&) {
    throw;
  } catch (const std::exception& error) {
    return sentence(message_of(error));
  }
}

// A member of a group, and its failure reporting state.
struct FollowedMember {
  GroupMembers members;
  FailureContext context;

  int64_t global_rank() const {
    return members.ranks[static_cast<size_t>(members.rank)];
  }
};

// A collective of a member, in the record and in error messages.
class FollowedCollective {
 public:
  FollowedCollective(const FollowedMember& member, const Collective& collective)
      : member_(member),
        name_(collective.function_name()) {
    DTENSOR_CHECK(
        member.context.forks == fork_count(),
        "[{}] this process was forked from {}, whose connections it cannot "
        "use. Communicate in the rank's own process.",
        name_,
        member.context.peers->name(member.global_rank()));
    number_ = member.context.record->begin(
        member.members.label, name_, collective.input_bytes());
  }

  // Runs `body` and explains its errors. The collective has ended if the result
  // is complete.
  template <typename Body>
  auto run(const Body& body) const {
    try {
      auto result = body();
      if (has_ended(result)) {
        member_.context.record->end(number_);
      }
      return result;
    } catch (...) {
      explain();
    }
  }

 private:
  static bool has_ended(const InFlight& result) {
    return result.is_complete();
  }
  static bool has_ended(const CollectiveResult& /*result*/) {
    return true;
  }
  // Called while handling an exception from the collective. Rethrows argument
  // errors: they are mistakes in the program and occur on all ranks.
  [[noreturn]] void explain() const;

  const FollowedMember& member_;
  std::string_view name_;
  int64_t number_ = 0;
};

void FollowedCollective::explain() const {
  const std::string text = text_of_caught();
  Peers& peers = *member_.context.peers;
  peers.publish_failure(text, /*is_cause=*/false);
  const std::string became = peers.describe_failures(member_.members.ranks);
  const std::string record = member_.context.record->write(text + " " + became);
  const auto [where, what] = split_message(text, name_);
  DTENSOR_THROW(
      "[{}] {} This was collective number {} of {}, on \"{}\": {}. {}",
      where,
      what,
      number_,
      peers.name(member_.global_rank()),
      member_.members.label,
      became,
      record.empty() ? ""
                     : "The last collectives are recorded in " + record + ".");
}

class FailureReportingBackend final : public BackendLayer {
 public:
  FailureReportingBackend(GroupBackendPtr inner, FailureContext following)
      : BackendLayer(std::move(inner)),
        member_(std::make_shared<FollowedMember>(
            FollowedMember{members(), std::move(following)})) {}

  InFlight submit(Collective&& collective) override {
    const FollowedCollective followed(*member_, collective);
    InFlight result = followed.run(
        [&] { return BackendLayer::submit(std::move(collective)); });
    if (result.is_complete()) {
      return result;
    }
    return std::move(result).around(
        [followed, member = member_](const InFlight::Wait& wait) {
          return followed.run(wait);
        });
  }

 private:
  std::shared_ptr<const FollowedMember> member_;
};

} // namespace

GroupBackendPtr with_failure_reports(
    GroupBackendPtr backend,
    FailureContext following) {
  return std::make_shared<FailureReportingBackend>(
      std::move(backend), std::move(following));
}

void rethrow_setup_error(
    const FailureContext& following,
    const std::vector<int64_t>& ranks) {
  const std::string text = text_of_caught();
  following.peers->publish_failure(text, /*is_cause=*/false);
  const std::string became = following.peers->describe_failures(ranks);
  const auto [where, what] = split_message(text, "new_group");
  DTENSOR_THROW("[{}] {} Meanwhile {}.", where, what, became);
}

} // namespace dtensor::detail
