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

class FailureReportingBackend final
    : public BackendLayer,
      public std::enable_shared_from_this<FailureReportingBackend> {
 public:
  FailureReportingBackend(GroupBackendPtr inner, FailureContext following)
      : BackendLayer(std::move(inner)),
        following_(std::move(following)) {}

  // The record shows that the collective has ended once its result is complete.
  InFlight submit(Collective&& collective) override {
    const std::string_view name = collective.function_name();
    DTENSOR_CHECK(
        following_.forks == fork_count(),
        "[{}] this process was forked from {}, whose connections it cannot "
        "use. Communicate in the rank's own process.",
        name,
        name_of_this_rank());
    const int64_t number =
        following_.record->begin(label(), name, collective.input_bytes());
    InFlight result = explained(name, number, [&] {
      return BackendLayer::submit(std::move(collective));
    });
    if (result.is_complete()) {
      following_.record->end(number);
      return result;
    }
    return std::move(result).around(
        [self = shared_from_this(), name, number](const InFlight::Wait& wait) {
          CollectiveResult waited = self->explained(name, number, wait);
          self->following_.record->end(number);
          return waited;
        });
  }

 private:
  template <typename Body>
  auto explained(std::string_view name, int64_t number, const Body& body) const
      -> decltype(body()) {
    try {
      return body();
    } catch (...) {
      explain(name, number);
    }
  }
  // Called while handling an exception from the collective. Rethrows argument
  // errors: they are mistakes in the program and occur on all ranks.
  [[noreturn]] void explain(std::string_view name, int64_t number) const;

  std::string name_of_this_rank() const {
    return following_.peers->name(members().ranks[static_cast<size_t>(rank())]);
  }

  FailureContext following_;
};

void FailureReportingBackend::explain(std::string_view name, int64_t number)
    const {
  const std::string text = text_of_caught();
  following_.peers->publish_failure(text, /*is_cause=*/false);
  const std::string became =
      following_.peers->describe_failures(members().ranks);
  const std::string record = following_.record->write(text + " " + became);
  const auto [where, what] = split_message(text, name);
  DTENSOR_THROW(
      "[{}] {} This was collective number {} of {}, on \"{}\": {}. {}",
      where,
      what,
      number,
      name_of_this_rank(),
      label(),
      became,
      record.empty() ? ""
                     : "The last collectives are recorded in " + record + ".");
}

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
