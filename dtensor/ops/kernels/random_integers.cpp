// SPDX-License-Identifier: BSD-3-Clause
// Random integers: random_, randint_like, multinomial.
#include <dtensor/ops/registry.h>

#include <dtensor/layout/spec_impl.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/over_shards_impl.h>
#include <dtensor/ops/kernels/random_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <ATen/ops/multinomial.h>

#include <limits>

namespace dtensor {
namespace {

using namespace detail;

struct Range {
  int64_t from = 0;
  uint64_t count = 0; // 0 stands for 2^64
};

// Returns the greatest number up to which the dtype represents all integers.
int64_t largest(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return int64_t{1} << std::numeric_limits<double>::digits;
    case at::kFloat:
      return int64_t{1} << std::numeric_limits<float>::digits;
    case at::kHalf:
      return int64_t{1} << std::numeric_limits<c10::Half>::digits;
    case at::kBFloat16:
      return int64_t{1} << std::numeric_limits<c10::BFloat16>::digits;
    default:
      return greatest_integer(dtype);
  }
}

Range range_of(const KernelArgs& args, int64_t from, int64_t to) {
  DTENSOR_CHECK_VALUE(
      from < to,
      "[{}] the range is empty: from {} to {}. Pass from < to.",
      args.name(),
      from,
      to);
  return {from, static_cast<uint64_t>(to) - static_cast<uint64_t>(from)};
}

// Returns the range [from, greatest value of the dtype], both included.
Range range_from(const KernelArgs& args, int64_t from, at::ScalarType dtype) {
  const auto last = largest(dtype);
  DTENSOR_CHECK_VALUE(
      from <= last,
      "[{}] from is {}, but the greatest value of {} is {}. Pass a smaller "
      "from.",
      args.name(),
      from,
      short_name(dtype),
      last);
  return {from, static_cast<uint64_t>(last) - static_cast<uint64_t>(from) + 1};
}

void check_holds(const KernelArgs& args, const Range& range, at::ScalarType t) {
  check_real(args, t);
  if (range.count == 0 || !c10::isIntegralType(t, true)) {
    return;
  }
  const auto last =
      static_cast<int64_t>(static_cast<uint64_t>(range.from) + range.count - 1);
  DTENSOR_CHECK_VALUE(
      range.from >= least_integer(t) && last <= largest(t),
      "[{}] values from {} to {} do not fit into {}. Pass a smaller range.",
      args.name(),
      range.from,
      last,
      short_name(t));
}

void fill_integers(KernelArgs& args, const Range& range) {
  check_holds(args, range, args.tensor("self").scalar_type());
  fill_self(args, [&](const Spec& spec, Draw draw) {
    return sample_integers(spec, draw, range.from, range.count);
  });
}

// Kernel of random_(), random_(to) and random_(from, to).
void random_(KernelArgs& args) {
  const auto from = args.get("from").toOptional<int64_t>().value_or(0);
  const auto to = args.get("to").toOptional<int64_t>();
  const auto dtype = args.tensor("self").scalar_type();
  fill_integers(
      args, to ? range_of(args, from, *to) : range_from(args, from, dtype));
}

// Kernel of randint_like(self, high) and (self, low, high).
void randint_like(KernelArgs& args) {
  const auto range = range_of(
      args,
      args.find("low") < 0 ? 0 : args.integer("low"),
      args.integer("high"));
  const auto dtype = dtype_of(args);
  check_holds(args, range, dtype);
  new_like(args, args.tensor("self"), dtype, [&](const Spec& s, Draw draw) {
    return sample_integers(s, draw, range.from, range.count);
  });
}

// Kernel of multinomial. On replicated probabilities, every rank draws the same
// samples, from a generator seeded by the random stream.
void multinomial(KernelArgs& args) {
  refuse_generator(args);
  const auto self = args.tensor("self");
  const auto& spec = spec_of(self);
  const auto replicated = replicated_placements(spec->mesh());
  auto sizes = Sizes(spec->sizes().begin(), spec->sizes().end());
  const auto samples = args.integer("num_samples");
  DTENSOR_CHECK_VALUE(
      !sizes.empty(),
      "[{}] probabilities need one or two dimensions, got {}. Reshape them.",
      args.name(),
      *spec);
  sizes.back() = samples;
  const auto result = Spec::make(spec->mesh(), replicated, sizes, at::kLong);
  auto local = draw_local(*result, self.device(), [&](Draw draw) {
    const auto p =
        redistributed("aten::multinomial", "self", self, replicated).local;
    const auto generator = at::detail::createCPUGenerator(
        draw.seed ^ (0x9E3779B97F4A7C15 * (draw.position + 1)));
    return at::multinomial(
               p.cpu(), samples, args.flag("replacement"), generator)
        .to(p.device());
  });
  args.returns(wrap(std::move(local), result));
}

} // namespace

DTENSOR_RULES(random_integers) {
  rules.kernel("random_", with_args(random_));
  rules.kernel("random_.to", with_args(random_));
  rules.kernel("random_.from", with_args(random_));
  for (const char* name :
       {"randint_like",
        "randint_like.low_dtype",
        "randint_like.generator",
        "randint_like.low_generator_dtype"}) {
    rules.kernel(name, with_args(randint_like));
  }
  rules.kernel("multinomial", with_args(multinomial));
}

} // namespace dtensor
