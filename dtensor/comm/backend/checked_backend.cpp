// SPDX-License-Identifier: BSD-3-Clause
// checked(): before each collective, the ranks gather a hash. It covers the
// call, the operator, layouts and module that cause the call, and assumed
// shapes. If the hashes differ, the ranks exchange their calls in full.
#include <dtensor/comm/group_backend.h>

#include <dtensor/comm/backend/packed_call_impl.h>
#include <dtensor/comm/backend_layer.h>
#include <dtensor/comm/group/redistribution_scope_impl.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/observer.h>
#include <dtensor/layout/text.h>

#include <ATen/ops/full.h>
#include <ATen/record_function.h>
#include <dtensor/format_text.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace dtensor {

using namespace detail;

namespace {

// Operators that are running on this thread, outermost first.
thread_local std::vector<std::string> operators;

std::unique_ptr<at::ObserverContext> note_begin(const at::RecordFunction& fn) {
  operators.emplace_back(fn.name());
  return nullptr;
}

void note_end(
    const at::RecordFunction& /*fn*/,
    at::ObserverContext* /*context*/) {
  operators.pop_back();
}

// Starts recording the operators of this thread, which is a rank.
void note_operators() {
  thread_local bool are_noted = false;
  if (!are_noted) {
    at::addThreadLocalCallback(at::RecordFunctionCallback(note_begin, note_end)
                                   .scopes({at::RecordScope::FUNCTION}));
    are_noted = true;
  }
}

// Returns "aten::linear, f32[4, 2] on (tp=2): P(sum) to R, in module \"up\"".
std::string purpose() {
  std::vector<std::string> parts;
  if (!operators.empty()) {
    parts.push_back(operators.front()); // called by the program
  }
  if (const auto* const way = RedistributionScope::current()) {
    parts.push_back(detail::format_text(
        "{} to {}",
        way->from(),
        to_string(PlacementsRef(way->to().placements()))));
  }
  if (const auto module = ModuleScope::current(); !module.empty()) {
    parts.push_back(detail::format_text("in module \"{}\"", module));
  }
  return c10::Join(", ", parts);
}

class CheckedBackend final : public BackendLayer {
 public:
  explicit CheckedBackend(GroupBackendPtr inner)
      : BackendLayer(std::move(inner)) {
    note_operators();
  }

  InFlight submit(Collective&& collective) override {
    // Other members make no call that matches a message.
    if (collective.kind != CollectiveKind::kSend &&
        collective.kind != CollectiveKind::kRecv) {
      compare_calls(collective);
    }
    return BackendLayer::submit(std::move(collective));
  }

  void assume(const Spec& spec) override {
    notes_.add(spec);
  }
  void set_operator_errors(int64_t total, const std::string& last) override {
    notes_.set_errors(total, last);
  }

 private:
  // The call, which shares the input, ends before the collective begins,
  // because a backend reads an input in place only if the collective owns it
  // alone.
  void compare_calls(const Collective& collective) {
    Call call = call_with_tensors(collective);
    call.purpose = purpose();
    notes_.drop_reported_expired();
    call.notes = notes_.empty() ? nullptr : &notes_;
    if (!have_one_fingerprint(call) || has_more_to_compare(call)) {
      compare_or_report(call);
    }
    notes_.clear();
  }

  bool have_one_fingerprint(const Call& call) {
    const Sizes one_each(static_cast<size_t>(size()), 1);
    const at::Tensor mine = at::full(
        {1},
        fingerprint(call),
        at::TensorOptions(needs().device).dtype(at::kLong));
    const at::Tensor all = inner()
                               .submit(
                                   {.kind = CollectiveKind::kAllGather,
                                    .inputs = mine,
                                    .sizes = one_each})
                               .wait()
                               .tensor.cpu();
    const auto* begin = all.const_data_ptr<int64_t>();
    return std::all_of(begin, begin + all.numel(), [&](int64_t theirs) {
      return theirs == *begin;
    });
  }

  // Compares the calls. All ranks throw the same error, so its cause is
  // reported.
  void compare_or_report(const Call& call) {
    try {
      InFlight packed = inner().submit(
          {.kind = CollectiveKind::kAllGatherStrings,
           .inputs = string_tensor(pack(call))});
      check_packed_calls(strings_of(packed.wait().tensors), members());
    } catch (const c10::ValueError&) {
      notes_.mark_reported();
      throw;
    }
  }

  RankNotes notes_;
};

} // namespace

GroupBackendPtr checked(GroupBackendPtr backend) {
  return std::make_shared<CheckedBackend>(std::move(backend));
}

} // namespace dtensor
