// SPDX-License-Identifier: BSD-3-Clause
// checked(): before each collective the ranks gather a number that says what
// they call. Where these differ, they exchange what they call in full.
#include <dtensor/comm/backend_decorator_impl.h>
#include <dtensor/comm/packed_call_impl.h>

#include <ATen/ops/full.h>

#include <algorithm>

namespace dtensor {

using namespace detail;

namespace {

class CheckedBackend final : public BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;

  void assume(const Spec& spec) override {
    assumed_.add(spec);
  }

 protected:
  void enter(const Entered& /*entered*/, MakeCall make) override {
    Call call = make();
    if (call.kind == CollectiveKind::kSend ||
        call.kind == CollectiveKind::kRecv) {
      return; // which the others know nothing of
    }
    call.assumed = assumed_.empty() ? nullptr : &assumed_;
    if (!have_one_fingerprint(call) || has_more_to_compare(call)) {
      compare(call);
    }
    assumed_.clear();
  }
  void leave(const Entered&) noexcept override {}

 private:
  bool have_one_fingerprint(const Call& call) {
    const Sizes one_each(static_cast<size_t>(size()), 1);
    const at::Tensor mine = at::full(
        {1},
        fingerprint(call),
        at::TensorOptions(needs().device).dtype(at::kLong));
    const at::Tensor all = inner().all_gather(mine, one_each).cpu();
    const auto* begin = all.const_data_ptr<int64_t>();
    return std::all_of(begin, begin + all.numel(), [&](int64_t theirs) {
      return theirs == *begin;
    });
  }

  void compare(const Call& call) {
    std::vector<ToldCall> told;
    for (const std::string& text : inner().exchange(pack(call))) {
      told.push_back(unpack(text));
    }
    Calls calls;
    for (ToldCall& theirs : told) {
      theirs.call.assumed = &theirs.assumed;
      calls.push_back(&theirs.call);
    }
    check_agreement(calls, members().ranks, label());
  }

  AssumedShapes assumed_;
};

} // namespace

GroupBackendPtr checked(GroupBackendPtr backend) {
  return std::make_shared<CheckedBackend>(std::move(backend));
}

} // namespace dtensor
