// SPDX-License-Identifier: BSD-3-Clause
// Every member shows its tensor, and copies those of all.
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <dtensor/comm/processes/shared_backend_impl.h>

#include <algorithm>

namespace dtensor::detail {

at::Tensor SharedBackend::gather_along(
    const at::Tensor& input,
    int64_t dim,
    SizesRef sizes) {
  constexpr CollectiveKind kKind = CollectiveKind::kAllGather;
  check_cpu(kKind, input);
  const Sizes known = sizes.empty() ? ask_sizes(input.size(dim)) : Sizes(sizes);
  const auto call = [&] {
    return Call{.kind = kKind, .inputs = {input}, .dim = dim, .sizes = known};
  };
  return collective(kKind, [&] {
    Sizes shape(input.sizes());
    shape[static_cast<size_t>(dim)] = c10::sum_integers(known);
    const at::Tensor out = at::empty(shape, input.options());
    const Targets targets = cut<std::byte>(out, dim, known);
    SharedSignature signature = sign(kKind, input.scalar_type(), known);
    signature.dim = static_cast<uint8_t>(dim);
    signature.numel = out.numel();
    gather(signature, all_of(input), targets, call);
    return out;
  });
}

void SharedBackend::gather(
    const SharedSignature& signature,
    const Source& mine,
    const Targets& targets,
    c10::function_ref<Call()> call) {
  const int64_t longest = longest_of(targets);
  const Room room = longest <= kNoticeBytes ? Room::kNotice : Room::kBlock;
  const int64_t step = channel_->bytes(room);
  for (int64_t at = 0; at == 0 || at < longest; at += step) {
    const Interval range = piece(mine, at, step);
    copy(mine, range, channel_->room(room, rank()));
    post(at, signature);
    meet(at, call);
    for (int64_t member = 0; member < size(); ++member) {
      const Target& target = targets[static_cast<size_t>(member)];
      copy(channel_->room(room, member), target, piece(target, at, step));
    }
    channel_->next();
  }
}

} // namespace dtensor::detail
