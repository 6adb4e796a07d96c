// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/allowed_operators.h>

#include <ATen/core/jit_type.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>

namespace dtensor {
namespace {

using c10::TypeKind;

using Names = std::set<std::string_view>;

// Splits a text of names separated by blanks.
Names names_in(std::string_view text) {
  const auto names = c10::split(text, ' ');
  return {names.begin(), names.end()};
}

// Names with an underscore that torch.export writes, with and without
// decompositions. The operators called unsafe check bounds on all devices:
// `_unsafe_index` is `index`, and `_unsafe_masked_index` clamps indices. The
// word in their names refers to autograd or the compiler. Excluded, because
// they omit bounds checks: _reshape_alias, _index_put_impl_, _stack, _ctc_loss,
// _native_multi_head_attention, _transformer_encoder_layer_fwd,
// _sparse_*_unsafe. check_arguments.cpp checks the arguments of _weight_norm*,
// _native_batch_norm_*, _batch_norm_*, _scaled_dot_product_* and _upsample_*.
constexpr std::string_view kPrivate =
    "__and__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__ __lshift__ "
    "__or__ __rshift__ __xor__ _adaptive_avg_pool2d _adaptive_avg_pool3d "
    "_addmm_activation _aminmax _assert_async _assert_scalar "
    "_assert_tensor_metadata _batch_norm_no_update _batch_norm_with_update "
    "_batch_norm_with_update_functional _cdist_forward _chunk_cat _conj "
    "_conj_copy _conj_physical _convolution _convolution_mode _embedding_bag "
    "_embedding_bag_forward_only _euclidean_dist "
    "_fake_quantize_learnable_per_channel_affine "
    "_fake_quantize_learnable_per_tensor_affine _fft_c2c _fft_c2r _fft_r2c "
    "_functional_assert_async _functional_assert_scalar "
    "_functional_sym_constrain_range _functional_sym_constrain_range_for_size "
    "_fused_rms_norm _grouped_mm _int_mm _is_all_true _is_any_true "
    "_linalg_check_errors _linalg_det _linalg_eigh _linalg_eigvals "
    "_linalg_slogdet _linalg_solve_ex _linalg_svd _local_scalar_dense "
    "_log_softmax _logcumsumexp _make_dep_token _masked_softmax "
    "_native_batch_norm_legit _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training _pad_circular _pad_enum "
    "_pdist_forward _prelu_kernel _safe_softmax _softmax _to_copy _trilinear "
    "_unique2 _unsafe_index _unsafe_index_put _unsafe_masked_index "
    "_unsafe_view _weight_norm _weight_norm_interface";

// Families of allowed private names.
constexpr std::array<std::string_view, 3> kPrivateFamilies = {
    "_foreach_",
    "_scaled_dot_product_",
    "_upsample_"};

// Refused public names: operators that change a tensor's storage, its place in
// memory, or autograd's record of it. Also operators that trust indices.
constexpr std::string_view kRefused =
    "batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt "
    "ccol_indices ccol_indices_copy coalesce col_indices col_indices_copy "
    "crow_indices crow_indices_copy ctc_loss data from_file "
    "fused_moving_avg_obs_fake_quant get_gradients hspmm indices indices_copy "
    "pin_memory record_stream requires_grad_ resize resize_ resize_as "
    "resize_as_ retain_grad row_indices row_indices_copy set set_ set_data smm "
    "sspaddmm to_mkldnn values values_copy";

// Families of operators that trust their arguments, such as layouts of a single
// library that are opaque to other code.
constexpr std::array<std::string_view, 5> kRefusedFamilies =
    {"cudnn_", "fbgemm_", "miopen_", "mkldnn_", "quantized_"};
// Parts of refused names. Operators that compute gradients trust the indices
// and sizes that the forward operator returned, and operators of sparse tensors
// trust their indices. Graphs of torch.export contain no such operators.
constexpr std::array<std::string_view, 2> kRefusedParts = {
    "_backward",
    "sparse"};

// String arguments with a few fixed values, not names of files or devices.
constexpr std::string_view kWords =
    "UPLO api_name approximate assert_msg driver equation indexing "
    "interpolation mode norm ord p pad_mode padding padding_side reduce "
    "rounding_mode side";

template <size_t N>
bool begins_with_any(
    std::string_view name,
    const std::array<std::string_view, N>& beginnings) {
  return std::ranges::any_of(beginnings, [&](std::string_view beginning) {
    return name.starts_with(beginning);
  });
}

bool has_computing_name(std::string_view name) {
  static const Names kept = names_in(kPrivate);
  static const Names refused = names_in(kRefused);
  if (std::ranges::any_of(kRefusedParts, [&](std::string_view part) {
        return name.find(part) != std::string_view::npos;
      })) {
    return false;
  }
  if (name.starts_with('_')) {
    return kept.count(name) > 0 || begins_with_any(name, kPrivateFamilies);
  }
  return refused.count(name) == 0 && !begins_with_any(name, kRefusedFamilies);
}

const c10::Type& element_type(const c10::Type& type) {
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional == nullptr ? type : *optional->getElementType();
}

bool is_word(const std::string& argument) {
  static const Names words = names_in(kWords);
  return words.count(argument) > 0;
}

bool is_computed_with(const c10::Argument& argument) {
  if (argument.name() == "unsafe") { // skips bounds checks
    return false;
  }
  const auto& given = *argument.type();
  const auto* type = &element_type(given);
  if (const auto* list = type->castRaw<c10::ListType>()) {
    type = &element_type(*list->getElementType());
  }
  switch (type->kind()) {
    case TypeKind::TensorType:
    case TypeKind::IntType:
    case TypeKind::FloatType:
    case TypeKind::BoolType:
    case TypeKind::NumberType:
    case TypeKind::ComplexType:
    case TypeKind::SymIntType:
    case TypeKind::SymFloatType:
    case TypeKind::SymBoolType:
    case TypeKind::ScalarTypeType:
    case TypeKind::LayoutType:
    case TypeKind::MemoryFormatType:
    case TypeKind::DeviceObjType:
      return true;
    case TypeKind::GeneratorType: // None: a file has no generators
      return given.kind() == TypeKind::OptionalType;
    case TypeKind::StringType:
      return is_word(argument.name());
    default:
      return false;
  }
}

} // namespace

bool only_computes(const c10::FunctionSchema& schema) {
  constexpr std::string_view kAten = "aten::";
  const std::string_view name = schema.name();
  return name.starts_with(kAten) &&
      has_computing_name(name.substr(kAten.size())) &&
      std::ranges::all_of(schema.arguments(), is_computed_with);
}

} // namespace dtensor
