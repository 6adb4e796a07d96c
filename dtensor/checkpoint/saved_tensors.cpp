// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/saved_tensors_impl.h>

#include <dtensor/checkpoint/manifest_impl.h>
#include <dtensor/checkpoint/tensor_file_impl.h>
#include <dtensor/comm/world.h>
#include <dtensor/error.h>
#include <dtensor/parallel/state/state_values_impl.h>
#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/weights/checksums_impl.h>

#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <unordered_set>
#include <utility>

namespace dtensor::detail {
namespace {

at::Tensor detached(const at::Tensor& value) {
  return value.defined() ? value.detach() : value;
}

void add_state(
    std::vector<SavedTensor>& tensors,
    const std::string& prefix,
    const StateDict& state) {
  for (const auto& item : state) {
    tensors.push_back({prefix + item.key(), detached(item.value())});
  }
}

constexpr auto kReplace = nlohmann::json::error_handler_t::replace;

bool can_be_a_name(const std::string& name) {
  try {
    nlohmann::json(name).dump();
  } catch (const nlohmann::json::exception&) {
    return false;
  }
  return name != "__metadata__";
}

// Converts exceptions of the standard library into errors with a `where`
// prefix.
std::exception_ptr named(const std::exception_ptr& error, const char* where) {
  try {
    std::rethrow_exception(error);
  } catch (const std::filesystem::filesystem_error& e) {
    return error_in(
        [&] { DTENSOR_THROW("[{}] {}. Check the path.", where, e.what()); });
  } catch (...) {
    return error;
  }
}

void check_names(const std::vector<SavedTensor>& tensors) {
  std::unordered_set<std::string> names;
  for (const auto& tensor : tensors) {
    DTENSOR_CHECK_VALUE(
        names.insert(tensor.name).second,
        "[save_checkpoint] two tensors are named \"{}\". Rename one.",
        tensor.name);
    DTENSOR_CHECK_VALUE(
        can_be_a_name(tensor.name),
        "[save_checkpoint] {} cannot be the name of a tensor in a file. Choose "
        "another name, in UTF-8.",
        nlohmann::json(tensor.name).dump(-1, ' ', true, kReplace));
  }
}

// Throws ValueError with the first difference. Each text is the JSON array of a
// rank's lines.
void check_same_lines(
    const std::vector<std::string>& texts,
    const char* where) {
  const auto first =
      nlohmann::json::parse(texts[0]).get<std::vector<std::string>>();
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const auto other =
        nlohmann::json::parse(texts[rank]).get<std::vector<std::string>>();
    for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      const auto a = i < first.size() ? first[i] : "nothing more";
      const auto b = i < other.size() ? other[i] : "nothing more";
      DTENSOR_CHECK_VALUE(
          a == b,
          "[{}] arguments differ between ranks: rank 0 has {}, rank {} has {}. "
          "Pass the same names in the same layouts on all ranks.",
          where,
          a,
          rank,
          b);
    }
  }
}

} // namespace

SavedTensors saved_tensors(const CheckpointState& state) {
  DTENSOR_CHECK_VALUE(
      state.optimizer == nullptr || state.model != nullptr,
      "[save_checkpoint] `optimizer` is set but `model` is not. Pass both.");
  SavedTensors saved;
  auto& tensors = saved.tensors;
  if (state.model != nullptr) {
    const auto all = tensors_of(kSaveCheckpoint, *state.model);
    saved.tied = TiedNames(all);
    add_state(tensors, "", all);
  }
  if (state.tensors != nullptr) {
    add_state(tensors, "", *state.tensors);
  }
  if (state.optimizer != nullptr) {
    add_state(
        tensors,
        kOptimizerPrefix,
        get_optimizer_state_dict(*state.model, *state.optimizer));
  }
  if (state.extra != nullptr) {
    for (const auto& [name, value] : *state.extra) {
      if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
        tensors.push_back({kExtraPrefix + name, detached(*tensor)});
      }
    }
  }
  check_names(tensors);
  std::erase_if(tensors, [&](const auto& tensor) {
    return saved.tied.firsts().count(tensor.name) > 0;
  });
  return saved;
}

GroupPtr group_or_world(const GroupPtr& group) {
  if (group != nullptr) {
    return group;
  }
  std::vector<int64_t> ranks(static_cast<size_t>(get_world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return new_group(ranks, "checkpoint");
}

std::vector<std::string> check_same_on_all_ranks(
    Group& group,
    const std::vector<std::string>& lines,
    const std::string& besides,
    const char* where) {
  const auto text = c10::Join("\n", lines);
  const auto mine = checksum_text({checksum_of(text.data(), text.size())});
  auto all = group.all_gather_strings(mine + besides);
  bool are_alike = true;
  for (auto& other : all) {
    are_alike = are_alike && other.starts_with(mine);
    other.erase(0, mine.size());
  }
  if (are_alike) {
    return all;
  }
  // All ranks have found the same mismatch, so all of them exchange their
  // lines.
  check_same_lines(
      group.all_gather_strings(
          nlohmann::json(lines).dump(-1, ' ', false, kReplace)),
      where);
  return all;
}

void check_none_failed(
    Group& group,
    const std::exception_ptr& given,
    const std::string& what,
    const char* where) {
  const auto error = given == nullptr ? nullptr : named(given, where);
  const auto errors = group.all_gather_strings(text_of(error));
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
  std::string text;
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) {
      text += detail::format_text(
          "{}rank {}: {}",
          text.empty() ? "" : "; ",
          group.ranks()[rank],
          errors[rank]);
    }
  }
  DTENSOR_CHECK(text.empty(), "[{}] {}{}", where, what, text);
}

std::string text_of(const std::exception_ptr& error) {
  if (error == nullptr) {
    return "";
  }
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  }
}

namespace {

// Maximum number of bytes on the CPU at once.
constexpr int64_t kComparedBytes = int64_t{8} << 20;

std::string digest_of(const at::Tensor& t) {
  BlockHasher hasher;
  const auto rows = rows_of(t);
  const auto count = t.dim() == 0 ? 1 : t.size(0);
  const auto row_bytes = count == 0
      ? int64_t{1}
      : std::max<int64_t>(static_cast<int64_t>(t.nbytes()) / count, 1);
  const auto step = std::max<int64_t>(kComparedBytes / row_bytes, 1);
  for (int64_t begin = 0; begin < count; begin += step) {
    const auto slice = rows(begin, std::min(step, count - begin));
    hasher.add(slice.data_ptr(), slice.nbytes());
  }
  const auto blocks = hasher.take_checksums();
  return checksum_text(
      {checksum_of(blocks.data(), blocks.size() * sizeof(uint64_t))});
}

// Returns the ranks with a different value of item `i` than rank 0.
std::vector<size_t> ranks_that_differ(
    const std::vector<std::vector<std::string>>& digests,
    size_t i) {
  std::vector<size_t> ranks;
  for (size_t rank = 1; rank < digests.size(); ++rank) {
    if (digests[rank][i] != digests[0][i]) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

} // namespace

ComparedValues compared_values(
    const std::vector<SavedTensor>& tensors,
    const CheckpointExtra& extra) {
  ComparedValues compared;
  for (const auto& item : tensors) {
    if (!is_dtensor(item.tensor)) {
      compared.names.push_back(item.name);
      compared.digests.push_back(digest_of(item.tensor));
    }
  }
  for (const auto& [name, value] : extra) {
    if (!std::holds_alternative<at::Tensor>(value)) {
      compared.names.push_back(kExtraPrefix + name);
      compared.digests.push_back(extra_text({{name, value}}));
    }
  }
  return compared;
}

std::vector<std::string> names_that_differ(
    const std::vector<std::string>& names,
    const std::vector<std::vector<std::string>>& digests,
    bool allows) {
  std::vector<std::string> different;
  std::vector<size_t> ranks; // for the first difference
  for (size_t i = 0; i < names.size(); ++i) {
    auto others = ranks_that_differ(digests, i);
    if (!others.empty()) {
      ranks = different.empty() ? std::move(others) : std::move(ranks);
      different.push_back(names[i]);
    }
  }
  DTENSOR_CHECK_VALUE(
      allows || different.empty(),
      "[save_checkpoint] \"{}\" is not distributed and differs between ranks: "
      "{}{}{} other values than rank 0{}. Make it the same on all ranks "
      "(broadcast_buffers() for statistics of batch norms), or make it a "
      "DTensor, or save the values of rank 0 with allow_differences = true.",
      different[0],
      ranks.size() == 1 ? "rank " : "ranks ",
      c10::Join(", ", ranks),
      ranks.size() == 1 ? " has" : " have",
      different.size() == 1
          ? std::string()
          : detail::format_text(
                " (further tensors that differ: {})", different.size() - 1));
  return different;
}

} // namespace dtensor::detail
