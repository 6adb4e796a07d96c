// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/backend/call_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/comm/backend/rank_notes_impl.h>
#include <dtensor/comm/group/group_checks_impl.h>
#include <dtensor/comm/group/operator_errors_impl.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/format_text.h>
#include <dtensor/layout/text.h>

#include <algorithm>

namespace dtensor {

bool Collective::owns_input() const {
  return detail::is_sole_owner(input());
}

} // namespace dtensor

namespace dtensor::detail {
namespace {

bool same_meta(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
}

// Returns true if sizes agree in every dimension except `dim`.
bool same_beside(const at::Tensor& a, const at::Tensor& b, int64_t dim) {
  return a.scalar_type() == b.scalar_type() && a.dim() == b.dim() &&
      resized(a.sizes(), dim, 0) == resized(b.sizes(), dim, 0);
}

bool scatter_fits(const Call& root, const Call& mine, size_t member) {
  return root.root == static_cast<int64_t>(member) ||
      (member < root.inputs.size() && mine.like.defined() &&
       same_meta(root.inputs[member], mine.like));
}

// Returns true if the inputs may belong to one collective of this kind.
bool inputs_fit(const Call& a, const Call& b) {
  switch (a.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kBroadcast:
      return same_meta(a.input(), b.input());
    case CollectiveKind::kAllGather:
      return same_beside(a.input(), b.input(), a.dim);
    case CollectiveKind::kAllToAll:
      return a.shard_dim < 0
          ? a.input().scalar_type() == b.input().scalar_type()
          : same_beside(a.input(), b.input(), a.dim);
    case CollectiveKind::kGather:
      return a.input().scalar_type() == b.input().scalar_type();
    default:
      return true;
  }
}

// Returns true if the calls of two members fit, apart from data that only one
// pair of members exchanges.
bool fits(const Call& a, const Call& b) {
  return common_fields(a) == common_fields(b) && a.device == b.device &&
      a.purpose == b.purpose && inputs_fit(a, b);
}

// Returns true if all inputs of an all_to_all have the shapes that their
// receivers expect.
bool all_get_their_parts(const Calls& calls) {
  for (size_t member = 0; member < calls.size(); ++member) {
    const auto& shapes = calls[member]->shapes;
    for (size_t from = 0; from < shapes.size(); ++from) {
      if (calls[from]->inputs[member].sizes() != shapes[from]) {
        return false;
      }
    }
  }
  return true;
}

bool all_fit(const Calls& calls) {
  if (!std::ranges::all_of(
          calls, [&](const Call* call) { return fits(*calls[0], *call); })) {
    return false;
  }
  if (calls[0]->kind == CollectiveKind::kAllToAll) {
    return all_get_their_parts(calls);
  }
  if (calls[0]->kind != CollectiveKind::kScatter) {
    return true;
  }
  const Call& root = *calls[static_cast<size_t>(calls[0]->root)];
  for (size_t member = 0; member < calls.size(); ++member) {
    if (!scatter_fits(root, *calls[member], member)) {
      return false;
    }
  }
  return true;
}

// Returns the size of the result of an all_gather along its dimension.
int64_t gathered_size(const Calls& calls) {
  int64_t total = 0;
  for (const Call* call : calls) {
    total += call->input().size(call->dim);
  }
  return total;
}

std::string describe_all(c10::ArrayRef<at::Tensor> tensors) {
  std::vector<std::string> texts;
  for (const at::Tensor& tensor : tensors) {
    texts.push_back(describe_tensor(tensor));
  }
  return c10::Join(", ", texts);
}

// Returns the sizes or shapes passed to the call.
std::string describe_sizes(const Call& call) {
  if (!call.sizes.empty()) {
    return c10::str(" in shards of ", c10::Join(", ", call.sizes));
  }
  std::vector<std::string> texts;
  for (const Sizes& shape : call.shapes) {
    texts.push_back(c10::str("[", c10::Join(", ", shape), "]"));
  }
  return texts.empty() ? "" : " for " + c10::Join(", ", texts);
}

std::string describe_device(const Call& call) {
  const auto device = call.device.value_or(c10::kCPU);
  return device == c10::kCPU
      ? ""
      : " on " + c10::DeviceTypeName(device, /*lower_case=*/true);
}

// Returns arguments other than the tensors, " along dim 0".
std::string describe_rest(const Call& call, const std::vector<int64_t>& ranks) {
  auto along = c10::str(" along dim ", call.dim);
  auto with = c10::str(" with ", to_string(call.op));
  const int64_t root = ranks.at(static_cast<size_t>(call.root));
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return with;
    case CollectiveKind::kReduceScatter:
      return along + with;
    case CollectiveKind::kAllGather:
      return call.gathered_size < 0
          ? along
          : detail::format_text("{} to size {}", along, call.gathered_size);
    case CollectiveKind::kAllToAll:
      return call.shard_dim < 0
          ? ""
          : detail::format_text(
                " from dim {} to dim {}", call.dim, call.shard_dim);
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kScatter:
      return c10::str(" from rank ", root);
    case CollectiveKind::kGather:
      return c10::str(" to rank ", root);
    default:
      return "";
  }
}

// Returns "all_gather of f32[4] along dim 0". `ranks` are the group's global
// ranks.
std::string describe_call(const Call& call, const std::vector<int64_t>& ranks) {
  if (call.kind == CollectiveKind::kBarrier ||
      call.kind == CollectiveKind::kAllGatherStrings) {
    return std::string(call.name());
  }
  const std::string given = call.inputs.empty() && call.like.defined()
      ? describe_tensor(call.like)
      : describe_all(call.inputs);
  return detail::format_text(
      "{} of {}{}", call.name(), given, describe_rest(call, ranks));
}

// Returns the reason why the calls are not one collective; nullopt if they are.
std::optional<std::string> disagreement(
    const Calls& calls,
    const std::vector<int64_t>& ranks,
    const std::string& label) {
  const bool fit = all_fit(calls);
  if (auto why = contradiction(calls, ranks, label, fit)) {
    return why;
  }
  if (fit) {
    return std::nullopt;
  }
  std::vector<std::string> texts;
  for (const Call* call : calls) {
    texts.push_back(
        describe_call(*call, ranks) + describe_sizes(*call) +
        describe_device(*call) +
        (call->purpose.empty() ? "" : " for " + call->purpose));
  }
  return detail::format_text(
      "[{}] ranks of \"{}\" disagree: {}. Call the same collective with the "
      "same sizes on every rank.",
      calls[0]->name(),
      label,
      group_ranks_by_text(texts, ranks, "call"));
}

} // namespace

Call call_with_tensors(const Collective& collective) {
  if (collective.received.empty()) {
    return Call(collective);
  }
  const auto parts = split(collective.input(), 0, collective.sizes);
  return Call(
      {.kind = collective.kind,
       .inputs = parts,
       .shapes =
           shapes_along(collective.input().sizes(), 0, collective.received)});
}

std::string describe_tensor(const at::Tensor& tensor) {
  return shape_text(tensor.scalar_type(), tensor.sizes());
}

void check_agreement(
    const Calls& calls,
    const std::vector<int64_t>& ranks,
    const std::string& label) {
  if (const auto why = disagreement(calls, ranks, label)) {
    note_common_error(ranks);
    throw c10::ValueError({__func__, __FILE__, uint32_t{__LINE__}}, *why);
  }
  if (calls[0]->kind == CollectiveKind::kAllGather) {
    check_gathered_size(*calls[0], label, gathered_size(calls));
  }
}

void add_text(RankTexts& texts, const std::string& text, int64_t rank) {
  const auto known =
      std::ranges::find(texts, text, &RankTexts::value_type::first);
  if (known != texts.end()) {
    known->second.push_back(rank);
  } else {
    texts.push_back({text, {rank}});
  }
}

std::string group_ranks_by_text(
    const std::vector<std::string>& texts,
    const std::vector<int64_t>& ranks,
    const std::string& verb) {
  RankTexts said;
  for (size_t member = 0; member < texts.size(); ++member) {
    add_text(said, texts[member], ranks[member]);
  }
  std::vector<std::string> parts;
  for (const auto& [text, who] : said) {
    parts.push_back(c10::str(
        rank_list(who), " ", verb, who.size() == 1 ? "s " : " ", text));
  }
  return c10::Join("; ", parts);
}

std::string rank_list(const std::vector<int64_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + c10::Join(", ", ranks);
}

} // namespace dtensor::detail
