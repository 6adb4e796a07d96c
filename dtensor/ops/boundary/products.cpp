// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/boundary/products_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/observer.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/region_impl.h>
#include <dtensor/tensor/wrap_impl.h>
#include <dtensor/torch_nodes_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

using Units = std::vector<int64_t>;

// Returns a replicated operand as a plain tensor. Its gradient is Partial
// because each rank uses only some units.
at::Tensor local_part(const at::Tensor& replicated) {
  return convert_single_input(conversion_to(
      replicated,
      nullptr,
      gradient_spec(
          *spec_of(replicated), Placements{Partial(ReduceOp::kSum)})));
}

Units mine_of(const DeviceMesh& mesh, const SharedUnits& shared) {
  return shared.of_rank(mesh.size(), mesh.get_local_rank());
}

// True if any rank repeats units. All ranks then record the same graph.
bool has_repeats(const DeviceMesh& mesh, const SharedUnits& shared) {
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const auto units = shared.of_rank(mesh.size(), rank);
    if (std::ranges::adjacent_find(units) != units.end()) {
      return true;
    }
  }
  return false;
}

// Selects units along the last dimension of `t`.
at::Tensor take_units(const at::Tensor& t, const Units& which, int64_t unit) {
  const auto apart = t.unflatten(-1, {t.size(-1) / unit, unit});
  std::vector<at::Tensor> parts = {apart.narrow(-2, 0, 0)};
  for (auto one = which.begin(); one != which.end();) {
    const auto next = std::find_if(
        one, which.end(), [&](int64_t other) { return other != *one; });
    auto sizes = apart.sizes().vec();
    sizes[sizes.size() - 2] = next - one;
    parts.push_back(apart.narrow(-2, *one, 1).expand(sizes));
    one = next;
  }
  return at::cat(parts, -2).flatten(-2);
}

} // namespace

// Counts this rank's users of each unit and divides the counts by their
// greatest common divisor. Each entry of the result then has the same number of
// consecutive users.
std::vector<int64_t> SharedUnits::of_rank(int64_t ranks, int64_t rank) const {
  const auto mine = chunk(users, ranks, rank);
  const auto each = users / count;
  const auto uses = [&](int64_t one) { // number of this rank's users
    return std::min(mine.end, (one + 1) * each) -
        std::max(mine.begin, one * each);
  };
  const Interval used{
      mine.begin / each,
      mine.size() == 0 ? mine.begin / each : (mine.end - 1) / each + 1};
  int64_t together = 0;
  for (auto one = used.begin; one < used.end; ++one) {
    together = std::gcd(together, uses(one));
  }
  Units units;
  for (auto one = used.begin; one < used.end; ++one) {
    units.insert(units.end(), static_cast<size_t>(uses(one) / together), one);
  }
  return units;
}

bool SharedUnits::is_sharded_by_units(int64_t ranks) const {
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto part = chunk(count, ranks, rank);
    Units once(static_cast<size_t>(part.size()));
    std::iota(once.begin(), once.end(), part.begin);
    if (of_rank(ranks, rank) != once) {
      return false;
    }
  }
  return true;
}

bool SharedUnits::is_even(int64_t ranks) const {
  for (int64_t rank = 1; rank < ranks; ++rank) {
    if (of_rank(ranks, rank).size() != of_rank(ranks, 0).size()) {
      return false;
    }
  }
  return true;
}

// Multiplies by the contiguous rows of the units that this rank needs, then
// repeats units of the output if necessary.
at::Tensor shared_linear(
    const at::Tensor& input,
    const at::Tensor& weight_t,
    const at::Tensor& bias,
    const SharedUnits& shared) {
  const auto& mesh = spec_of(input)->mesh();
  const auto units = mine_of(mesh, shared);
  const auto first = units.empty() ? 0 : units.front();
  const auto different = units.empty() ? 0 : units.back() - first + 1;
  const auto rows = [&](const at::Tensor& t) {
    return t.narrow(0, first * shared.unit, different * shared.unit);
  };
  auto y = at::linear(
      local_part(input),
      rows(local_part(weight_t).t()),
      bias.defined() ? std::optional(rows(local_part(bias))) : std::nullopt);
  if (!has_repeats(mesh, shared)) {
    return y;
  }
  auto positions = units;
  for (auto& position : positions) {
    position -= first;
  }
  return take_units(y, positions, shared.unit);
}

at::Tensor shared_bias(const at::Tensor& bias, const SharedUnits& shared) {
  return take_units(
      local_part(bias), mine_of(spec_of(bias)->mesh(), shared), shared.unit);
}

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Returns the shape of `rows` times `weight_t`.
Sizes product_sizes(const at::Tensor& rows, const at::Tensor& weight_t) {
  Sizes sizes(rows.sizes().begin(), rows.sizes().end());
  sizes.back() = weight_t.size(1);
  return sizes;
}

at::Tensor as_matrix(const at::Tensor& t) {
  int64_t rows = 1; // explicit, since a rank may have no features
  for (int64_t d = 0; d + 1 < t.dim(); ++d) {
    rows *= t.size(d);
  }
  return t.reshape({rows, t.size(-1)});
}

// Gradients of a linear, computed without chunks.
struct OverlappedLinearBackward final : Node {
  OverlappedLinearBackward(const at::Tensor& x, const at::Tensor& w_t)
      : input(x, /*is_output=*/false),
        weight_t(w_t, /*is_output=*/false),
        sizes(x.sizes().vec()) {}

  variable_list apply(variable_list&& grads) override {
    variable_list result(3);
    if (!grads[0].defined()) {
      return result;
    }
    const ModuleScope scope(module, /*backward=*/true);
    const auto grad = as_matrix(redistribute_autograd(
        grads[0], fully_replicated_spec(*spec_of(grads[0]))));
    if (task_should_compute_output(0)) {
      result[0] = at::mm(grad, weight_t.unpack().t()).reshape(sizes);
    }
    if (task_should_compute_output(1)) {
      result[1] = at::mm(as_matrix(input.unpack()).t(), grad);
    }
    if (task_should_compute_output(2)) {
      result[2] = grad.sum(0);
    }
    return result;
  }
  void release_variables() override {
    input.reset_data();
    weight_t.reset_data();
  }
  std::string name() const override {
    return "OverlappedLinearBackward";
  }

  SavedVariable input;
  SavedVariable weight_t;
  std::vector<int64_t> sizes;
  std::string_view module = ModuleScope::current();
};

/// Chunks of one tensor. Each chunk is reduced by its own collective.
class PendingParts final : public Pending {
 public:
  PendingParts(at::Tensor result, std::vector<PendingPtr> parts)
      : result_(std::move(result)),
        parts_(std::move(parts)) {}
  at::Tensor wait() override {
    for (const auto& part : parts_) {
      part->wait();
    }
    parts_.clear();
    return result_;
  }

 private:
  at::Tensor result_;
  std::vector<PendingPtr> parts_;
};

// True if `t` is a DTensor sharded along `dim` (with any unit), or replicated
// for dim < 0.
bool is_laid_out(const at::Tensor& t, const DeviceMesh& mesh, int64_t dim) {
  if (!is_dtensor(t) || spec_of(t)->mesh() != mesh ||
      copied_from(t) != nullptr) {
    return false;
  }
  const auto& layout = spec_of(t)->placements()[0];
  return dim < 0 ? layout.is_replicate() : layout.is_shard(dim);
}

int64_t unit_of(const at::Tensor& t) {
  return spec_of(t)->placements()[0].unit();
}

bool can_overlap(
    const at::Tensor& input,
    const at::Tensor& weight_t,
    const at::Tensor& bias,
    const Placement& output) {
  const DeviceMesh& mesh = spec_of(input)->mesh();
  const auto dtype = input.scalar_type();
  return mesh.ndim() == 1 && mesh.size() > 1 && mesh.contains_this_rank() &&
      input.dim() >= 2 && weight_t.dim() == 2 &&
      input.size(-1) == weight_t.size(0) &&
      is_laid_out(input, mesh, input.dim() - 1) &&
      is_laid_out(weight_t, mesh, 0) && unit_of(input) == unit_of(weight_t) &&
      (!bias.defined() || is_laid_out(bias, mesh, -1)) &&
      dtype == weight_t.scalar_type() &&
      (!bias.defined() || dtype == bias.scalar_type()) &&
      (output.is_replicate() || (output.is_shard() && output.dim() > 0));
}

// Returns the shard sizes of all ranks if they differ from torch.chunk's.
Sizes sizes_in_units(const Spec& spec) {
  const auto& sharding = spec.placements()[0];
  Sizes sizes;
  if (!sharding.is_shard() || sharding.is_chunk()) {
    return sizes;
  }
  const auto size = spec.sizes()[static_cast<size_t>(sharding.dim())];
  const auto ranks = spec.mesh().size();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    sizes.push_back(chunk(size, ranks, rank, sharding.unit()).size());
  }
  return sizes;
}

// Computes this rank's partial product for some rows. Only one rank adds the
// bias.
at::Tensor product(
    const at::Tensor& rows,
    const at::Tensor& weight_t,
    const at::Tensor& bias) {
  const auto matrix = as_matrix(rows);
  return (bias.defined() ? at::addmm(bias, matrix, weight_t)
                         : at::mm(matrix, weight_t))
      .view(product_sizes(rows, weight_t));
}

// Waits for each chunk's collective after multiplying the next chunk. By then
// the other ranks have probably started the collective too, and its data is
// still in the cache.
at::Tensor compute(
    const at::Tensor& input,
    const at::Tensor& weight_t,
    const at::Tensor& bias,
    const SpecPtr& to,
    int64_t chunks) {
  const c10::NoGradGuard no_grad;
  Group& group = get_group(to->mesh(), 0);
  const Placement& output = to->placements()[0];
  const at::Tensor result =
      at::empty(to->local_sizes(), local_of(input).options());
  // With a replicated output, chunks may begin at any row of the matrix.
  const bool fold = output.is_replicate();
  const at::Tensor rows = fold ? as_matrix(local_of(input)) : local_of(input);
  const at::Tensor out = fold ? as_matrix(result) : result;
  const Sizes sizes = sizes_in_units(*to);
  const at::Tensor my_bias =
      bias.defined() && group.rank() == 0 ? local_of(bias) : at::Tensor();
  std::vector<PendingPtr> parts;
  for (int64_t i = 0; i < chunks; ++i) {
    const Interval part = chunk(rows.size(0), chunks, i);
    auto term = product(
        rows.narrow(0, part.begin, part.size()), local_of(weight_t), my_bias);
    const auto at = out.narrow(0, part.begin, part.size());
    parts.push_back(
        fold ? group.all_reduce_async(std::move(term), ReduceOp::kSum, at)
             : group.reduce_scatter_async(
                   std::move(term), output.dim(), ReduceOp::kSum, at, sizes));
    if (i > 0) {
      parts[static_cast<size_t>(i) - 1]->wait();
    }
  }
  return wrap(
      std::make_shared<PendingParts>(result, std::move(parts)), to, result);
}

} // namespace

at::Tensor overlapped_linear(
    const at::Tensor& input,
    const at::Tensor& weight_t,
    const at::Tensor& bias,
    const Placement& output,
    int64_t chunks) {
  if (!can_overlap(input, weight_t, bias, output)) {
    return {};
  }
  const int64_t features = input.size(-1);
  const int64_t rows = output.is_shard() || features == 0
      ? input.size(0)
      : input.numel() / features;
  chunks = std::min(chunks, rows);
  if (chunks < 2) {
    return {};
  }
  const auto sizes = product_sizes(input, weight_t);
  const auto to = Spec::make(
      spec_of(input)->mesh(),
      {output},
      sizes,
      dtensor::contiguous_strides(sizes),
      input.scalar_type());
  auto result = compute(input, weight_t, bias, to, chunks);
  const bool records = c10::GradMode::is_enabled() &&
      (input.requires_grad() || weight_t.requires_grad() ||
       (bias.defined() && bias.requires_grad()));
  if (records) {
    auto node = make_node<OverlappedLinearBackward>(input, weight_t);
    node->set_next_edges(
        torch::autograd::collect_next_edges(input, weight_t, bias));
    torch::autograd::set_history(result, std::move(node));
  }
  return result;
}

} // namespace dtensor::detail
