// SPDX-License-Identifier: BSD-3-Clause
#include "tests/ops/rule_calls.h"

#include "tests/ops/further_calls.h"
#include "tests/ops/output_meta.h"
#include "tests/ops/spatial_calls.h"

#include <dtensor/ops/path/stack_impl.h>
#include <torch/torch.h>

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace dtensor::testing {
namespace {

using Values = std::vector<c10::IValue>;
using Ints = std::vector<int64_t>;

at::Tensor floats(at::IntArrayRef sizes) {
  return at::full(sizes, 0.5, at::kFloat);
}

at::Tensor indices(at::IntArrayRef sizes) {
  return at::zeros(sizes, at::kLong);
}

c10::IValue index_list(const at::Tensor& index) {
  c10::List<std::optional<at::Tensor>> list;
  list.push_back(index);
  return list;
}

const c10::IValue kNone;

// First arguments of operators for which the usual arguments do not work.
using Table = std::map<std::string, Values>;

void add_moves(Table& table) {
  const auto x = floats({4, 6});
  table["split.Tensor"] = table["unsafe_split.Tensor"] = {x, 2, 1};
  table["split_with_sizes"] =
      table["unsafe_split_with_sizes"] = {x, Ints{2, 4}, 1};
  table["slice.Tensor"] = {x, 1, 1};
  table["slice_backward"] = {floats({4, 5}), Ints{4, 6}, 1, 1, 6, 1};
  table["select_backward"] = {floats({4}), Ints{4, 6}, 1, 0};
  table["diagonal_backward"] = {floats({4}), Ints{4, 6}, 0, 0, 1};
  table["unfold_backward"] = {floats({4, 3, 2}), Ints{4, 6}, 1, 2, 2};
  table["slice_scatter"] = {x, floats({4, 5}), 1, 1};
  table["select_scatter"] = {x, floats({4}), 1, 0};
  table["constant_pad_nd"] = {x, Ints{1, 0}, 0};
  table["permute"] = {x, Ints{1, 0}};
  table["transpose.int"] = table["transpose_"] = {x, 0, 1};
  table["squeeze.dims"] = {floats({4, 1}), Ints{1}};
  table["expand"] = {floats({4, 1}), Ints{4, 3}};
  table["repeat"] = {x, Ints{2, 1}};
  table["roll"] = {x, Ints{1}, Ints{1}};
  table["unfold"] = {x, 1, 2, 2};
  table["view"] = table["_unsafe_view"] = table["view_copy"] = {x, Ints{24}};
  table["_reshape_alias"] = {x, Ints{24}, Ints{1}};
  table["view.dtype"] = {x, static_cast<int64_t>(at::kInt)};
  table["view_as_real"] = {at::zeros({4, 6}, at::kComplexFloat)};
  table["view_as_complex"] = {floats({4, 2})};
  for (const auto* name : {"new_empty", "new_zeros", "new_ones", "new_full"}) {
    table[name] = {x, Ints{4, 6}};
  }
  table["new_empty_strided"] = {x, Ints{4, 6}, Ints{6, 1}};
}

void add_indexing(Table& table) {
  const auto x = floats({4, 6});
  const auto all = indices({4, 6});
  const auto some = indices({3});
  table["index_select"] = {x, 1, some};
  table["gather"] = {x, 1, all};
  table["index.Tensor"] = {x, index_list(some)};
  table["scatter.src"] = table["scatter_add"] = {x, 1, all, x};
  table["scatter.reduce"] = {x, 1, all, x, "add"};
  table["scatter.value_reduce"] = {x, 1, all, 0.5, "add"};
  table["scatter_reduce.two"] = {x, 1, all, x, "sum"};
  table["scatter.value"] = {x, 1, all};
  table["index_add"] = table["index_copy"] = {x, 1, indices({6}), x};
  table["index_reduce"] = {x, 1, indices({6}), x, "prod"};
  table["index_fill.int_Scalar"] = {x, 1, some};
  table["index_fill.int_Tensor"] = {x, 1, some, floats({})};
  table["index_put"] =
      table["_index_put_impl"] = {x, index_list(some), floats({3, 6})};
  table["embedding"] = {floats({8, 6}), indices({4, 3})};
  table["embedding_bag"] = {floats({8, 6}), indices({4}), indices({1})};
  table["embedding_bag.padding_idx"] = {
      floats({8, 6}),
      indices({4}),
      indices({1}),
      false,
      0,
      false,
      kNone,
      false,
      kNone};
  table["embedding_dense_backward"] = {
      floats({4, 3, 6}), indices({4, 3}), 8, -1, false};
  table["fill.Tensor"] = {x, floats({})};
  table["masked_fill.Tensor"] = {x, all.to(at::kBool), floats({})};
}

// Adds recurrent layers of (time, samples, features) and of packed elements.
void add_layers(Table& table) {
  const auto state = floats({1, 4, 5});
  const auto sizes = at::full({3}, 4, at::kLong);
  for (const auto& [name, gates] : std::map<std::string, int64_t>{
           {"gru", 3}, {"lstm", 4}, {"rnn_relu", 1}, {"rnn_tanh", 1}}) {
    const c10::IValue hx = name == "lstm"
        ? c10::IValue(std::vector<at::Tensor>{state, state})
        : c10::IValue(state);
    const std::vector<at::Tensor> weights{
        floats({5 * gates, 6}), floats({5 * gates, 5})};
    table[name + ".input"] = {
        floats({3, 4, 6}), hx, weights, false, 1, 0.0, false, false, false};
    table[name + ".data"] = {
        floats({12, 6}), sizes, hx, weights, false, 1, 0.0, false, false};
  }
}

void add_products(Table& table) {
  const auto a = floats({4, 8});
  const auto b = floats({8, 6});
  const auto as = floats({2, 4, 8});
  const auto bs = floats({2, 8, 6});
  table["mm"] = {a, b};
  table["bmm"] = {as, bs};
  table["dot"] = table["vdot"] = {floats({8}), floats({8})};
  table["mv"] = {a, floats({8})};
  table["addmm"] = {floats({6}), a, b};
  table["addmv"] = {floats({4}), a, floats({8})};
  table["addr"] = {floats({4, 6}), floats({4}), floats({6})};
  table["baddbmm"] = {floats({2, 4, 6}), as, bs};
  table["addbmm"] = {floats({4, 6}), as, bs};
  table["matmul"] = {as, b};
  table["einsum"] = {"bmk,bkn->bmn", std::vector<at::Tensor>{as, bs}};
  table["tensordot"] = {as, b, Ints{2}, Ints{0}};
  table["linear"] = {as, floats({6, 8}), floats({6})};
  const auto heads = floats({2, 4, 3, 8});
  table["scaled_dot_product_attention"] = {heads, heads, heads};
  const auto x = floats({4, 6});
  table["gru_cell"] = {x, floats({4, 5}), floats({15, 6}), floats({15, 5})};
  table["lstm_cell"] = {
      x,
      std::vector<at::Tensor>{floats({4, 5}), floats({4, 5})},
      floats({20, 6}),
      floats({20, 5})};
  table["rnn_relu_cell"] = table["rnn_tanh_cell"] = {
      x, floats({4, 5}), floats({5, 6}), floats({5, 5})};
  add_layers(table);
}

void add_norms_and_losses(Table& table) {
  const auto x = floats({4, 3, 6});
  const auto w = floats({6});
  const auto means = floats({4, 3, 1});
  const c10::IValue mask = c10::List<bool>({true, true, true});
  table["layer_norm"] = {x, Ints{6}, w, w};
  table["rms_norm"] = table["_fused_rms_norm"] = {x, Ints{6}, w};
  table["native_layer_norm"] = {x, Ints{6}, w, w, 1e-5};
  table["native_layer_norm_backward"] = {
      x, x, Ints{6}, means, means, w, w, mask};
  const auto y = floats({4, 6, 5});
  const auto groups = floats({4, 2});
  table["group_norm"] = {y, 2, w, w};
  table["native_group_norm"] = {y, w, w, 4, 6, 5, 2, 1e-5};
  table["native_group_norm_backward"] = {
      y, y, groups, groups, w, 4, 6, 5, 2, mask};
  table["batch_norm"] = {y, w, w, w, w, false, 0.1, 1e-5, false};
  table["native_batch_norm"] =
      table["_native_batch_norm_legit"] = {y, w, w, w, w, true, 0.1, 1e-5};
  table["_native_batch_norm_legit.no_stats"] = {y, w, w, true, 0.1, 1e-5};
  table["_batch_norm_with_update"] =
      table["_batch_norm_no_update"] = {y, w, w, w, w, 0.1, 1e-5};
  table["native_batch_norm_backward"] =
      table["batch_norm_backward"] = {y, y, w, w, w, w, w, true, 1e-5, mask};
  table["batch_norm_backward"].emplace_back(at::zeros({0}, at::kByte));
  table["instance_norm"] = {y, w, w, kNone, kNone, true, 0.1, 1e-5, false};
  const auto logits = floats({4, 6});
  const auto target = indices({4});
  const auto images = floats({2, 6, 4, 5});
  const auto masks = indices({2, 4, 5});
  const auto one = floats({});
  table["nll_loss_forward"] = {logits, target, kNone, 1, -100};
  table["nll_loss2d_forward"] = {images, masks, kNone, 1, -100};
  table["nll_loss_backward"] = {one, logits, target, kNone, 1, -100, one};
  table["nll_loss2d_backward"] = {one, images, masks, kNone, 1, -100, one};
  for (const auto* name :
       {"mse_loss_backward",
        "smooth_l1_loss_backward",
        "huber_loss_backward",
        "soft_margin_loss_backward"}) {
    table[name] = {one, logits, logits, 1};
  }
  table["binary_cross_entropy_backward"] = {one, logits, logits};
}

// Adds the operators with kernels.
void add_kernels(Table& table) {
  const auto x = floats({4, 6});
  const auto batch = floats({2, 4, 8});
  table["as_strided"] = table["as_strided_"] = {x, Ints{4, 6}, Ints{6, 1}};
  table["squeeze"] = table["squeeze.dim"] = {floats({4, 1}), 1};
  table["squeeze"].pop_back();
  table["addbmm_"] = {x, batch, floats({2, 8, 6})};
  table["cross_entropy_loss"] = table["nll_loss_nd"] = {x, indices({4})};
  table["dropout"] = table["dropout_"] = {x, 0.5, true};
  table["native_dropout"] = {x, 0.5, true};
  table["_local_scalar_dense"] = {floats({1})};
  table["bernoulli.Tensor"] = table["bernoulli_.Tensor"] = {x, x};
  table["tensor_split.tensor_indices_or_sections"] = {x, indices({1}), 1};
  const auto dtype = static_cast<int64_t>(at::kFloat);
  table["norm.ScalarOpt_dtype"] = {x, 2, dtype};
  table["norm.ScalarOpt_dim_dtype"] = {x, 2, Ints{1}, false, dtype};
  table["randint_like.low_dtype"] = {x, 0, 3};
  table["randint_like.low_generator_dtype"] = {x, 0, 3};
  const std::vector<at::Tensor> list{x};
  const std::vector<at::Tensor> steps{floats({})};
  const std::vector<at::Tensor> none;
  for (const auto* name : {"_fused_adam_", "_fused_adamw_"}) {
    table[name] = {
        list,
        list,
        list,
        list,
        none,
        steps,
        0.5,
        0.5,
        0.5,
        0.5,
        0.5,
        false,
        false};
    table[name + std::string(".tensor_lr")] = table[name];
    table[name + std::string(".tensor_lr")][6] = floats({});
  }
  table["_fused_sgd_"] = {
      list, list, list, 0.5, 0.5, 0.5, 0.5, false, false, false};
  table["_fused_sgd_.tensor_lr"] = table["_fused_sgd_"];
  table["_fused_sgd_.tensor_lr"][5] = floats({});
  table["_fused_adagrad_"] = {
      list, list, list, steps, 0.5, 0.5, 0.5, 0.5, false};
  table["_fused_adagrad_.tensor_lr"] = table["_fused_adagrad_"];
  table["_fused_adagrad_.tensor_lr"][4] = floats({});
  table["_amp_foreach_non_finite_check_and_unscale_"] = {
      list, floats({1}), floats({1})};
}

// Adds linear algebra on batches of matrices, and Fourier transforms.
void add_linear_algebra(Table& table) {
  const auto a = at::eye(5).repeat({4, 1, 1});
  const auto b = floats({4, 5, 2});
  const auto tall = at::eye(6, 5).repeat({4, 1, 1});
  const auto pivots = at::arange(1, 6, at::kInt).repeat({4, 1});
  for (const auto* name :
       {"linalg_cholesky_ex",
        "linalg_inv_ex",
        "linalg_lu_factor_ex",
        "linalg_ldl_factor_ex",
        "linalg_lu",
        "cholesky",
        "cholesky_inverse",
        "linalg_matrix_exp",
        "linalg_eig",
        "_linalg_eigvals",
        "_linalg_eigh",
        "_linalg_det",
        "_linalg_slogdet"}) {
    table[name] = {a};
  }
  for (const auto* name :
       {"linalg_qr", "geqrf", "_linalg_svd", "linalg_pinv.atol_rtol_tensor"}) {
    table[name] = {tall};
  }
  table["linalg_matrix_power"] = table["matrix_power"] = {a, 3};
  table["linalg_matrix_rank.atol_rtol_float"] =
      table["linalg_matrix_rank.atol_rtol_tensor"] = {tall};
  table["linalg_matrix_rank"] = {tall, 0.5};
  table["linalg_matrix_rank.tol_tensor"] = {tall, floats({4})};
  table["lu_unpack"] = {a, pivots};
  table["linalg_householder_product"] = {tall, floats({4, 5})};
  table["ormqr"] = {tall, floats({4, 5}), floats({4, 6, 2})};
  table["_linalg_solve_ex"] = {a, b};
  table["linalg_solve_triangular"] = {a, b, true};
  table["cholesky_solve"] = table["triangular_solve"] = {b, a};
  table["_cholesky_solve_helper"] = {b, a, false};
  table["linalg_lu_solve"] = table["linalg_ldl_solve"] = {a, pivots, b};
  table["linalg_cross"] = {floats({4, 6, 3}), floats({4, 6, 3}), 2};
  table["cdist"] = table["_cdist_forward"] = {b, floats({4, 3, 2}), 2.0, 2};
  table["_cdist_backward"] = {
      floats({4, 5, 3}), b, floats({4, 3, 2}), 2.0, floats({4, 5, 3})};
  table["_linalg_check_errors"] = {at::zeros({4}, at::kInt), "linalg.inv"};
  const auto z = at::zeros({4, 6}, at::kComplexFloat);
  table["_fft_c2c"] = {z, Ints{1}, 0, true};
  table["_fft_r2c"] = {floats({4, 6}), Ints{1}, 0, true};
  table["_fft_c2r"] = {z, Ints{1}, 0, 10};
}

void add_others(Table& table) {
  const auto x = floats({4, 6});
  table["clamp"] = {x, 0.25};
  table["clamp.Tensor"] = {x, x};
  table["glu_backward"] = {floats({4, 3}), x, 1};
  table["bucketize.Tensor"] = {x, floats({5})};
  table["searchsorted.Tensor"] = {floats({4, 5}), x};
  table["take"] = {x, indices({3})};
  table["histc"] = {x, 5, 0, 1};
  table["combinations"] = {floats({4})};
  table["max_pool1d"] = {floats({2, 3, 6}), Ints{2}};
  table["where.ScalarOther"] = {x > 0, x, 2.0};
  table["where.ScalarSelf"] = {x > 0, 2.0, x};
  table["masked_scatter_backward"] = {x, x > 0, Ints{4, 6}};
  table["bincount"] = {indices({4})};
  table["repeat_interleave.Tensor"] = {at::ones({4}, at::kLong)};
  table["_pack_padded_sequence"] = {
      floats({3, 4, 6}), at::full({4}, 3, at::kLong), false};
  table["isin.Tensor_Tensor"] = {x, floats({5})};
  table["quantile"] = table["nanquantile"] = {x, floats({2}), 1};
  table["_softmax_backward_data"] = table["_log_softmax_backward_data"] = {
      x, x, 1, static_cast<int64_t>(at::kFloat)};
}

const Table& special_arguments() {
  static const Table table = [] {
    Table all;
    add_moves(all);
    add_indexing(all);
    add_products(all);
    add_norms_and_losses(all);
    add_kernels(all);
    add_linear_algebra(all);
    add_others(all);
    add_spatial_calls(all);
    add_further_calls(all);
    return all;
  }();
  return table;
}

// Returns an argument by type. Dimension arguments name the last of two
// dimensions.
c10::IValue usual_argument(
    const c10::Argument& argument,
    at::ScalarType dtype) {
  const auto& name = argument.name();
  const bool is_dim = name == "dim" || name == "dims";
  if (argument.default_value() && !is_dim) {
    return *argument.default_value();
  }
  const auto x = at::full({4, 6}, dtype == at::kFloat ? 0.5 : 1, dtype);
  auto type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return name == "mask" || name == "condition" ? x.to(at::kBool) : x;
    case c10::TypeKind::NumberType:
      return dtype == at::kFloat ? c10::IValue(0.5) : c10::IValue(1);
    case c10::TypeKind::FloatType:
      return 0.5;
    case c10::TypeKind::IntType:
      return argument.type()->kind() == c10::TypeKind::OptionalType && !is_dim
          ? kNone
          : c10::IValue(1);
    case c10::TypeKind::BoolType:
      return false;
    case c10::TypeKind::ListType:
      return type->isSubtypeOf(*c10::ListType::ofTensors())
          ? c10::IValue(std::vector<at::Tensor>{x, x})
          : c10::IValue(Ints{1});
    default:
      return kNone;
  }
}

torch::jit::Stack cloned(torch::jit::Stack values) {
  detail::map_tensors(
      values.data(), values.size(), [](const at::Tensor& t, size_t) {
        return t.clone();
      });
  return values;
}

PlainCall call_with(const c10::OperatorHandle& op, at::ScalarType dtype) {
  auto name = op.schema().name().substr(std::string("aten::").size());
  const auto& overload = op.schema().overload_name();
  name += overload.empty() ? "" : "." + overload;
  const auto found = special_arguments().find(name);
  PlainCall call;
  if (found != special_arguments().end()) {
    call.arguments = found->second;
  }
  const auto& arguments = op.schema().arguments();
  for (size_t i = call.arguments.size(); i < arguments.size(); ++i) {
    call.arguments.push_back(usual_argument(arguments[i], dtype));
  }
  call.results = cloned(call.arguments); // the operator may write them
  op.callBoxed(&call.results);
  return call;
}

} // namespace

std::vector<OutputMeta> metas_of(const torch::jit::Stack& results) {
  std::vector<OutputMeta> metas;
  for (const auto& value : results) {
    if (value.isTensor()) {
      metas.push_back(meta_of_result(value.toTensor()));
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) {
        metas.push_back(meta_of_result(t));
      }
    }
  }
  return metas;
}

PlainCall plain_call_of(const c10::OperatorHandle& op) {
  const torch::NoGradGuard no_grad;
  for (const auto dtype : {at::kFloat, at::kLong, at::kComplexFloat}) {
    try {
      return call_with(op, dtype);
    } catch (const c10::Error&) {
      // The operator does not accept numbers of this kind.
    }
  }
  try {
    return call_with(op, at::kBool);
  } catch (const c10::Error& e) {
    throw std::runtime_error(
        "rule_calls.cpp has no call of " + op.schema().name() + "." +
        op.schema().overload_name() + ": " + e.what_without_backtrace());
  }
}

} // namespace dtensor::testing
