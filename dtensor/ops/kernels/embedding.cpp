// SPDX-License-Identifier: BSD-3-Clause
// Embedding look-up in the rows that this rank holds: embedding, one_hot and
// embedding_bag.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_to_copy.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/unsqueeze.h>
#include <ATen/ops/zeros.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/index_kernels_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/meta_impl.h>

#include <optional>

namespace dtensor {
namespace {

using namespace detail;

void check_in_range(
    const KernelArgs& args,
    const at::Tensor& indices,
    int64_t rows) {
  const auto outside = indices.lt(0).logical_or_(indices.ge(rows));
  DTENSOR_CHECK_INDEX(
      !outside.any().item<bool>(),
      "[{}] index out of range: the table has {}. Pass indices of at least 0 "
      "and below that number.",
      args.base_name(),
      pluralize(rows, "row"));
}

// Looks up rows. LibTorch's second derivative of an embedding fails if no row
// is looked up, which can happen on a single rank. The empty result is not a
// view of the table, because the graph keeps the result, and the table may be
// written before the backward pass.
at::Tensor look_up(
    const at::Tensor& weight,
    const at::Tensor& rows,
    int64_t padding_idx,
    bool scale_grad_by_freq) {
  return rows.numel() == 0
      ? weight.narrow(0, 0, 0).clone()
      : at::embedding(weight, rows, padding_idx, scale_grad_by_freq);
}

int64_t to_local_row(int64_t row, const Intervals& rows) {
  int64_t before = 0;
  for (const auto& interval : rows) {
    if (row >= interval.begin && row < interval.end) {
      return row - interval.begin + before;
    }
    before += interval.size();
  }
  return -1;
}

} // namespace

void detail::embedding_local(KernelArgs& args, const Decision& decision) {
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      !args.flag("sparse"),
      "[{}] sparse gradients are not supported on DTensors. Leave `sparse` "
      "out.",
      args.base_name());
  const auto& spec = *decision.inputs[0];
  const auto weight = args.tensor("weight");
  const auto indices = args.tensor("indices");
  check_in_range(args, indices, spec.sizes()[0]);
  const auto rows = local_intervals(spec, 0);
  const auto local = to_local_indices(indices.reshape(-1), rows);
  const auto mine = at::nonzero(local.ge(0)).squeeze(1);
  const auto found = look_up(
      weight,
      local.index_select(0, mine),
      to_local_row(args.integer("padding_idx"), rows),
      args.flag("scale_grad_by_freq"));
  const auto width = weight.size(1);
  auto sizes = indices.sizes().vec();
  sizes.push_back(width);
  auto output = at::zeros({indices.numel(), width}, weight.options())
                    .index_copy(0, mine, found)
                    .view(sizes);
  args.returns(std::move(output));
}

namespace {

// one_hot of ids in any layout: each rank compares its local ids with all
// classes. LibTorch's decomposition would write into a plain tensor.

constexpr const char* kWhere = "aten::one_hot";

// Returns the number of classes, and throws for ids that the plain operator
// rejects. All ranks compare the same numbers, so either all ranks throw or
// none.
int64_t checked_classes(const at::Tensor& ids, int64_t num_classes) {
  const auto& spec = *spec_of(ids);
  if (ids.numel() == 0) {
    DTENSOR_CHECK(
        num_classes > 0,
        "[{}] the ids, {}, are empty, so the number of classes cannot be "
        "inferred. Pass num_classes.",
        kWhere,
        spec);
    return num_classes;
  }
  const auto least = at::min(ids).item<int64_t>();
  const auto greatest = at::max(ids).item<int64_t>();
  const bool inferred = num_classes == -1;
  DTENSOR_CHECK(
      least >= 0 && (inferred || greatest < num_classes),
      "[{}] the ids, {}, are from {} to {}, but the number of classes is {}. "
      "Pass ids of at least 0 and below that number.",
      kWhere,
      spec,
      least,
      greatest,
      num_classes);
  return inferred ? greatest + 1 : num_classes;
}

void one_hot(KernelArgs& args) {
  const auto ids = args.tensor("self");
  const auto& spec = *spec_of(ids);
  DTENSOR_CHECK(
      spec.dtype() == at::kLong,
      "[{}] the ids must be int64, got {}. Convert them.",
      kWhere,
      spec);
  const auto classes = place_plain(
      at::arange(
          checked_classes(ids, args.integer("num_classes")),
          at::TensorOptions(at::kLong).device(spec.mesh().device_type())),
      spec);
  args.returns(
      at::_to_copy(at::eq(at::unsqueeze(ids, -1), classes), at::kLong));
}

// embedding_bag: sums and means of rows of a table. Every rank looks up its
// rows and adds them to the bags. Offsets and sizes of bags are replicated.

constexpr int64_t kMean = 1;
constexpr int64_t kMax = 2;

void report_gather(const char* argument, const at::Tensor& t) {
  const auto& spec = spec_of(t);
  before_redistributing(
      "aten::embedding_bag",
      argument,
      spec,
      replicated_placements(spec->mesh()));
}

// Returns the gathered values of an argument, without gradients.
at::Tensor gathered_values(const char* argument, const at::Tensor& t) {
  if (!is_dtensor(t)) {
    return t.detach();
  }
  report_gather(argument, t);
  return DTensor(t.detach()).full_tensor();
}

// Runs the plain operator on gathered operands, with its gradient.
void run_gathered(KernelArgs& args) {
  const auto like = first_spec(args.all());
  const auto& schema = args.op().schema();
  args.map_tensors([&](const at::Tensor& t, const char* argument) {
    if (!is_dtensor(t)) {
      return t;
    }
    report_gather(argument, t);
    return to_local_autograd(
        redistribute_autograd(t, fully_replicated_spec(*spec_of(t))));
  });
  args.run_operator();
  map_results(
      &args.stack(), schema.returns().size(), [&](const at::Tensor& t, size_t) {
        return from_local_autograd(t, replicated_spec(*like, t));
      });
}

// The operands of a call whose bags are sums or means of rows.
struct Bags {
  explicit Bags(const KernelArgs& args)
      : weight(args.tensor("weight")),
        ids(args.tensor("indices")),
        factors(args.tensor("per_sample_weights")),
        is_mean(args.integer("mode") == kMean) {
    padding = args.get("padding_idx").toOptional<int64_t>();
    if (padding) {
      *padding += *padding < 0 ? weight.size(0) : 0;
    }
    const auto offsets =
        gathered_values("offsets", args.tensor("offsets")).to(at::kLong);
    num_bags = offsets.numel() - (args.flag("include_last_offset") ? 1 : 0);
    bag_of_id = at::searchsorted(
                    offsets.narrow(0, 0, num_bags),
                    at::arange(ids.numel(), offsets.options()),
                    /*out_int32=*/false,
                    /*right=*/true) -
        1;
  }

  // Returns the weight of each row in its bag; undefined if all weights are 1.
  at::Tensor scale() const {
    if (!padding) {
      return factors;
    }
    const auto counts = at::ne(ids, *padding).to(weight.scalar_type());
    return factors.defined() ? factors * counts : counts;
  }

  // Returns the number of ids in each bag, (num_bags, 1); at least 1.
  at::Tensor sizes() const {
    const auto all_ids = gathered_values("indices", ids);
    const auto counted =
        padding ? at::ne(all_ids, *padding) : at::ones_like(all_ids, at::kBool);
    return at::zeros({num_bags}, all_ids.options().dtype(at::kLong))
        .index_add(0, bag_of_id, counted.to(at::kLong))
        .clamp_min(1)
        .unsqueeze(1);
  }

  // Returns zeros in the shape of the result: Partial where `rows` is Partial
  // or sharded by ids, replicated elsewhere.
  at::Tensor zeros_beside(const at::Tensor& rows) const {
    auto layout = spec_of(rows)->placements();
    Placements sums(layout.begin(), layout.end());
    for (auto& p : sums) {
      p = p.is_partial(ReduceOp::kSum) || p.is_sharded(0)
          ? Placement(Partial(ReduceOp::kSum))
          : Replicate();
    }
    return DTensor::from_local(
        at::zeros({num_bags, weight.size(1)}, local_of(weight).options()),
        spec_of(rows)->mesh(),
        sums);
  }

  // Returns the bags as a function of the table and the factors.
  at::Tensor run() const {
    const auto& spec = *spec_of(weight);
    auto rows = at::embedding(weight, ids);
    if (const auto factor = scale(); factor.defined()) {
      rows = rows * factor.unsqueeze(-1);
    }
    auto sums = at::index_add(
        zeros_beside(rows), 0, place_plain(bag_of_id, spec), rows);
    return is_mean ? sums / place_plain(sizes(), spec) : sums;
  }

  at::Tensor weight;
  at::Tensor ids;
  at::Tensor factors;
  bool is_mean;
  std::optional<int64_t> padding;
  int64_t num_bags = 0;
  at::Tensor bag_of_id;
};

// Returns true if the bags are sums of rows that ranks may look up.
bool adds_rows(const KernelArgs& args) {
  const auto weight = args.tensor("weight");
  const auto ids = args.tensor("indices");
  const auto offsets = args.tensor("offsets");
  const auto factors = args.tensor("per_sample_weights");
  const bool last = args.flag("include_last_offset");
  return is_dtensor(weight) && weight.dim() == 2 && is_dtensor(ids) &&
      ids.dim() == 1 && ids.numel() > 0 && !args.flag("sparse") &&
      !args.flag("scale_grad_by_freq") && args.integer("mode") < kMax &&
      offsets.dim() == 1 && offsets.numel() > (last ? 1 : 0) &&
      (!factors.defined() || is_dtensor(factors)) &&
      (!last ||
       gathered_values("offsets", offsets)[-1].item<int64_t>() == ids.numel());
}

// Runs the plain operator on a table with one column. The plain operator checks
// the operands. The results except the first do not depend on the columns.
torch::jit::Stack run_one_column(const KernelArgs& given) {
  const at::NoGradGuard no_grad;
  auto stack = given.all().vec();
  KernelArgs args(given.op(), stack);
  const auto weight = args.tensor("weight");
  args.map_tensors([&](const at::Tensor& t, const char* argument) {
    auto plain = t.is_same(weight)
        ? at::zeros({t.size(0), 1}, local_of(t).options())
        : gathered_values(argument, t);
    return plain.set_requires_grad(t.requires_grad());
  });
  args.run_operator();
  return stack;
}

void embedding_bag(KernelArgs& args) {
  if (all_replicated(args.all()) || !adds_rows(args)) {
    run_gathered(args);
    return;
  }
  auto results = run_one_column(args);
  const auto& spec = *spec_of(args.tensor("weight"));
  map_results(&results, results.size(), [&](const at::Tensor& t, size_t) {
    return place_plain(t, spec);
  });
  args.returns(Bags(args).run(), results[1], results[2], results[3]);
}

} // namespace

DTENSOR_RULES(embedding_kernels) {
  rules.kernel("one_hot", with_args(one_hot));
  for (const auto* name : {"embedding_bag", "embedding_bag.padding_idx"}) {
    rules.kernel(name, with_args(embedding_bag))
        .with_traits({.module_created_arg = "offsets"});
  }
}

} // namespace dtensor
