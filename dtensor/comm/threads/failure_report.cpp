// SPDX-License-Identifier: BSD-3-Clause
// Combines the failures of many ranks into one error.
#include <dtensor/comm/threads/rank_threads_impl.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/format_text.h>

#include <algorithm>
#include <typeindex>
#include <utility>

namespace dtensor::detail {
namespace {

/// Contents of a rank's error.
struct RankError {
  std::string text;
  std::type_index type = typeid(void);
  bool by_peers = false;
};

RankError error_of(const RankFailure& failure) {
  try {
    std::rethrow_exception(failure.error);
  } catch (const RankEnded&) {
    return {
        failure.place.empty() ? "terminated" : "terminated in " + failure.place,
        typeid(RankEnded),
        true};
  } catch (const c10::Error& error) {
    return {error.what_without_backtrace(), typeid(error)};
  } catch (const std::exception& error) {
    return {error.what(), typeid(error)};
  } catch (...) {
    return {"an exception not derived from std::exception"};
  }
}

// Returns true if `text` already names the collective, as dtensor's own errors
// do.
bool is_named_in(const std::string& place, const std::string& text) {
  const std::string name = place.substr(0, place.find(' '));
  return place.empty() || text.rfind("[" + name + "]", 0) == 0 ||
      text.rfind("[deadlock]", 0) == 0 || text.find("disagree: ") < text.size();
}

// Returns `text` with the collectives in which these ranks failed, unless
// `text` names them.
std::string with_places(
    const std::string& text,
    const std::vector<int64_t>& ranks,
    const std::vector<RankFailure>& failures) {
  std::vector<std::string> places;
  for (const RankFailure& failure : failures) {
    const std::string& place = failure.place;
    const bool is_one = std::ranges::find(ranks, failure.rank) != ranks.end();
    if (is_one && !is_named_in(place, text) &&
        std::ranges::find(places, place) == places.end()) {
      places.push_back(place);
    }
  }
  return places.empty()
      ? text
      : detail::format_text("{} (in {})", text, c10::Join(", ", places));
}

// Returns the errors that ranks caught and that therefore did not end these
// ranks.
RankTexts caught_texts(const std::vector<RankFailure>& failures) {
  RankTexts caught;
  for (const RankFailure& failure : failures) {
    const bool failed = failure.error && !error_of(failure).by_peers;
    if (!failed && !failure.caught.empty()) {
      add_text(caught, failure.caught, failure.rank);
    }
  }
  return caught;
}

// Error texts of all ranks, each text once.
struct Report {
  RankTexts own;
  RankTexts ended;
  RankTexts caught;
  size_t failed = 0;
  /// Type of all own errors, if their types are equal.
  std::type_index type = typeid(void);
};

Report report_of(const std::vector<RankFailure>& failures) {
  Report report;
  for (const RankFailure& failure : failures) {
    if (!failure.error) {
      continue;
    }
    const RankError error = error_of(failure);
    add_text(
        error.by_peers ? report.ended : report.own, error.text, failure.rank);
    if (!error.by_peers) {
      const bool alike = report.failed == 0 || report.type == error.type;
      report.type = alike ? error.type : typeid(void);
      ++report.failed;
    }
  }
  report.caught = caught_texts(failures);
  return report;
}

std::string message_of(
    const char* where,
    const Report& report,
    const std::vector<RankFailure>& failures) {
  std::vector<std::string> parts;
  for (const auto& [text, ranks] : report.own) {
    const bool world_group =
        ranks.size() > 1 && ranks.size() == failures.size();
    parts.push_back(
        (world_group ? "every rank" : rank_list(ranks)) + ": " +
        with_places(text, ranks, failures));
  }
  for (const auto& [text, ranks] : report.caught) {
    parts.push_back(rank_list(ranks) + " caught: " + text);
  }
  for (const auto& [text, ranks] : report.ended) {
    parts.push_back(
        rank_list(ranks) + (ranks.size() == 1 ? " was " : " were ") + text);
  }
  return detail::format_text(
      "[{}] {} of {} ranks failed. {}",
      where,
      report.failed,
      failures.size(),
      c10::Join("; ", parts));
}

// Throws an error whose type is the one among Errors... that equals `type`.
template <typename... Errors>
void throw_typed(std::type_index type, const std::string& message) {
  const c10::SourceLocation here{__func__, __FILE__, uint32_t{__LINE__}};
  ((type == typeid(Errors) ? throw Errors(here, message) : void()), ...);
}

} // namespace

void throw_if_any_failed(
    const char* where,
    const std::vector<RankFailure>& failures) {
  const Report report = report_of(failures);
  if (report.own.empty() && report.ended.empty()) {
    return;
  }
  const auto message = message_of(where, report, failures);
  throw_typed<
      c10::ValueError,
      c10::IndexError,
      c10::TypeError,
      c10::NotImplementedError,
      c10::LinAlgError,
      c10::OutOfMemoryError>(report.type, message);
  throw c10::Error({__func__, __FILE__, uint32_t{__LINE__}}, message);
}

} // namespace dtensor::detail
