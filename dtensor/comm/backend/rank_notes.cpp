// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/backend/rank_notes_impl.h>

#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>
#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/comm/observer.h>
#include <dtensor/format_text.h>
#include <dtensor/layout/text.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {
namespace {

constexpr size_t kKept = 64;

// Hashes an assumption without the local sizes, which may differ although the
// global shape agrees.
uint64_t
fingerprint(at::ScalarType dtype, SizesRef sizes, PlacementsRef placements) {
  size_t hash = static_cast<size_t>(dtype);
  for (const auto size : sizes) {
    hash = c10::hash_combine(hash, static_cast<size_t>(size));
  }
  for (const auto& placement : placements) {
    hash = c10::hash_combine(hash, placement.hash());
  }
  return hash;
}

// Tensor of the innermost AssumedTensor.
thread_local c10::weak_intrusive_ptr<c10::BackendMeta> noted_tensor(
    (c10::intrusive_ptr<c10::BackendMeta>()));

// Returns true if two ranks made the same tensor from shards of different
// sizes, which from_local cannot detect. Returns false for two tensors at two
// places in the program.
bool are_of_one_tensor(const AssumedShape* a, const AssumedShape* b) {
  if (a == nullptr || b == nullptr || a->placements != b->placements ||
      a->dtype != b->dtype || a->sizes.size() != b->sizes.size()) {
    return false;
  }
  for (size_t dim = 0; dim < a->sizes.size(); ++dim) {
    const bool is_sharded =
        std::ranges::any_of(a->placements, [&](const auto& placement) {
          return placement.is_sharded(static_cast<int64_t>(dim));
        });
    if (a->sizes[dim] != b->sizes[dim] && !is_sharded) {
      return false;
    }
  }
  return true;
}

std::string text_of(at::ScalarType dtype, SizesRef sizes) {
  return c10::str(short_name(dtype), "[", c10::Join(", ", sizes), "]");
}

const AssumedShape* at(const Call& call, size_t index) {
  const auto* shapes = call.notes;
  return shapes == nullptr || index >= shapes->first().size()
      ? nullptr
      : &shapes->first()[index];
}

// Returns the index of the first tensor on which the members disagree.
size_t first_difference(const std::vector<const Call*>& calls) {
  for (size_t index = 0; index < kKept; ++index) {
    const auto* a = at(*calls[0], index);
    for (const auto* call : calls) {
      const auto* b = at(*call, index);
      if ((a == nullptr) != (b == nullptr) ||
          (a != nullptr &&
           (a->sizes != b->sizes || a->placements != b->placements ||
            a->dtype != b->dtype))) {
        return index;
      }
    }
  }
  return kKept;
}

std::string describe_shape(const AssumedShape* shape) {
  if (shape == nullptr) {
    return "no such tensor";
  }
  return detail::format_text(
      "{} in {} from its {}",
      text_of(shape->dtype, shape->sizes),
      to_string(PlacementsRef(shape->placements)),
      text_of(shape->dtype, shape->local_sizes));
}

// Lists ranks with equal texts together, in order of the first.
std::string describe_all(
    const std::vector<const Call*>& calls,
    const std::vector<int64_t>& ranks,
    size_t index) {
  std::vector<std::string> texts;
  for (const Call* call : calls) {
    texts.push_back(describe_shape(at(*call, index)));
  }
  return group_ranks_by_text(texts, ranks, "make");
}

// Returns advice. A program may never have called from_local itself; its
// modules may have.
std::string advice(const Call& call, size_t index) {
  const auto* shape = at(call, index);
  return shape == nullptr || shape->module.empty()
      ? "Pass the global shape to from_local on every rank."
      : detail::format_text(
            "Shards of different sizes passed to module \"{}\" must be "
            "DTensors: set use_local_output = false on the module that returns "
            "them, or pass the global shape to from_local on every rank.",
            shape->module);
}

const RankNotes& notes_of(const Call& call) {
  static const RankNotes none;
  return call.notes ? *call.notes : none;
}

bool all_agree(const std::vector<const Call*>& calls) {
  return std::ranges::all_of(calls, [&](const Call* call) {
    return notes_of(*call).agrees_with(notes_of(*calls[0]));
  });
}

bool have_equal_errors(const std::vector<const Call*>& calls) {
  return std::ranges::all_of(calls, [&](const Call* call) {
    return notes_of(*call).errors() == notes_of(*calls[0]).errors();
  });
}

std::string describe_errors(
    const std::vector<const Call*>& calls,
    const std::vector<int64_t>& ranks) {
  std::vector<std::string> texts;
  for (const Call* call : calls) {
    const RankNotes& notes = notes_of(*call);
    texts.push_back(
        notes.errors() == 0
            ? "none"
            : detail::format_text(
                  "{}, the last: {}", notes.errors(), notes.last_error()));
  }
  return group_ranks_by_text(texts, ranks, "report");
}

} // namespace

AssumedTensor::AssumedTensor(const at::Tensor& tensor) {
  noted_tensor = RankNotes::WeakTensor(
      tensor.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr());
}

AssumedTensor::~AssumedTensor() {
  noted_tensor.reset();
}

void RankNotes::add(const Spec& spec) {
  if (first_.size() < kKept) {
    note(
        {{spec.sizes().begin(), spec.sizes().end()},
         {spec.local_sizes().begin(), spec.local_sizes().end()},
         {spec.placements().begin(), spec.placements().end()},
         spec.dtype(),
         ModuleScope::current()},
        noted_tensor);
    return;
  }
  hash_ = c10::hash_combine(
      hash_, fingerprint(spec.dtype(), spec.sizes(), spec.placements()));
  ++count_;
}

void RankNotes::note(AssumedShape shape, WeakTensor tensor) {
  hash_ = c10::hash_combine(
      hash_, fingerprint(shape.dtype, shape.sizes, shape.placements));
  ++count_;
  first_.push_back(std::move(shape));
  tensors_.push_back(std::move(tensor));
}

// Drops all tensors if there are more than kKept, because tensors beyond kKept
// cannot be checked.
void RankNotes::drop_expired() {
  const RankNotes old = take_tensors();
  for (size_t i = 0; old.count_ <= kKept && i < old.first_.size(); ++i) {
    if (!old.tensors_[i].expired()) {
      note(old.first_[i], old.tensors_[i]);
    }
  }
  is_reported_ = count_ > 0;
}

RankNotes RankNotes::take_tensors() {
  RankNotes left;
  left.errors_ = errors_;
  left.agreed_errors_ = agreed_errors_;
  left.last_error_ = last_error_;
  return std::exchange(*this, std::move(left));
}

void RankNotes::restore_tensors(const RankNotes& copy) {
  if (count_ == 0) {
    hash_ = copy.hash_;
    count_ = copy.count_;
    first_ = copy.first_;
    tensors_ = copy.tensors_;
  }
}

std::optional<std::string> contradiction(
    const std::vector<const Call*>& calls,
    const std::vector<int64_t>& ranks,
    const std::string& label,
    bool fit) {
  if (all_agree(calls)) {
    return std::nullopt;
  }
  if (!have_equal_errors(calls)) {
    return detail::format_text(
        "[{}] ranks of \"{}\" disagree about errors of operators: {}. Do not "
        "catch an error that other ranks do not have, because they go on with "
        "the operator.",
        calls[0]->name(),
        label,
        describe_errors(calls, ranks));
  }
  const auto index = first_difference(calls);
  const bool explains =
      index == kKept || std::ranges::all_of(calls, [&](const Call* call) {
        return are_of_one_tensor(at(*calls[0], index), at(*call, index));
      });
  if (!fit && !explains) {
    return std::nullopt;
  }
  return detail::format_text(
      "[from_local] ranks of \"{}\" disagree about a tensor made without a "
      "global shape{}. {}",
      label,
      index < kKept ? ": " + describe_all(calls, ranks, index)
                    : c10::str(", after the first ", kKept),
      advice(*calls[0], index));
}

} // namespace dtensor::detail
