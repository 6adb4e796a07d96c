// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/failure_reporting_backend_impl.h>

#include <dtensor/comm/backend_decorator_impl.h>
#include <dtensor/comm/message_of_impl.h>
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
    : public BackendDecorator,
      public std::enable_shared_from_this<FailureReportingBackend> {
 public:
  FailureReportingBackend(GroupBackendPtr inner, FailureContext following)
      : BackendDecorator(std::move(inner)),
        following_(std::move(following)) {}

  void ended(int64_t number) const {
    following_.record->end(number);
  }
  /// Called while handling an exception from a collective. Rethrows argument
  /// errors: they are mistakes in the program and occur on all ranks.
  [[noreturn]] void explain(std::string_view name, int64_t number) const;

 protected:
  void enter(const Entered& entered, MakeCall /*call*/) override {
    DTENSOR_CHECK(
        following_.forks == fork_count(),
        "[{}] this process was forked from {}, whose connections it cannot "
        "use. Communicate in the rank's own process.",
        entered.name,
        following_.peers->name(global_rank()));
    number_ = following_.record->begin(label(), entered.name, entered.bytes);
    ends_here_ = true;
  }
  void leave(const Entered& /*entered*/) noexcept override {
    if (ends_here_) {
      ended(number_);
    }
  }
  void failed(const Entered& entered) override {
    ends_here_ = false;
    explain(entered.name, number_);
  }
  PendingPtr started(const Entered& entered, PendingPtr pending) override;

 private:
  int64_t global_rank() const {
    return members().ranks[static_cast<size_t>(rank())];
  }

  FailureContext following_;
  int64_t number_ = 0;
  bool ends_here_ = true;
};

class FollowedPending final : public Pending {
 public:
  FollowedPending(
      PendingPtr inner,
      std::shared_ptr<FailureReportingBackend> backend,
      std::string_view name,
      int64_t number)
      : inner_(std::move(inner)),
        backend_(std::move(backend)),
        name_(name),
        number_(number) {}

  at::Tensor wait() override {
    try {
      at::Tensor result = inner_->wait();
      backend_->ended(number_);
      return result;
    } catch (...) {
      backend_->explain(name_, number_);
    }
  }

 private:
  PendingPtr inner_;
  std::shared_ptr<FailureReportingBackend> backend_;
  std::string_view name_;
  int64_t number_;
};

PendingPtr FailureReportingBackend::started(
    const Entered& entered,
    PendingPtr pending) {
  ends_here_ = false;
  return std::make_shared<FollowedPending>(
      std::move(pending), shared_from_this(), entered.name, number_);
}

void FailureReportingBackend::explain(std::string_view name, int64_t number)
    const {
  const std::string text = text_of_caught();
  Peers& peers = *following_.peers;
  const auto me = global_rank();
  peers.tell(text, /*is_cause=*/false);
  const std::string became = peers.describe_failures(members().ranks);
  const std::string record = following_.record->write(text + " " + became);
  const auto [where, what] = split_message(text, name);
  DTENSOR_THROW(
      "[{}] {} This was collective number {} of {}, on \"{}\": {}. {}",
      where,
      what,
      number,
      peers.name(me),
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
  following.peers->tell(text, /*is_cause=*/false);
  const std::string became = following.peers->describe_failures(ranks);
  const auto [where, what] = split_message(text, "new_group");
  DTENSOR_THROW("[{}] {} Meanwhile {}.", where, what, became);
}

} // namespace dtensor::detail
