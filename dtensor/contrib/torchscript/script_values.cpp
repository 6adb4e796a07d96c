// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/contrib/torchscript/read_script_impl.h>

#include <dtensor/error.h>
#include <dtensor/tensor/dtensor.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/jit/ir/ir.h>

#include <set>
#include <string_view>
#include <utility>

namespace dtensor::torchscript {
namespace {

using c10::IValue;
namespace jit = torch::jit;
using OptionalTensors = c10::List<std::optional<at::Tensor>>;

using Names = std::set<std::string_view>;
using Other = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor with_other(const at::Tensor& t, const Other& other) {
  return t.defined() ? other(t) : t;
}

// Returns the value with its tensors replaced.
IValue with_tensors(const IValue& value, const Other& other) {
  if (value.isTensor()) {
    return with_other(value.toTensor(), other);
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) {
      list.push_back(with_other(t, other));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    OptionalTensors list;
    for (const auto& t : value.toOptionalTensorVector()) {
      list.push_back(t ? std::optional(with_other(*t, other)) : t);
    }
    return list;
  }
  if (value.isTuple()) {
    std::vector<IValue> items;
    for (const auto& item : value.toTupleRef().elements()) {
      items.push_back(with_tensors(item, other));
    }
    return c10::ivalue::Tuple::create(std::move(items));
  }
  if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    c10::impl::GenericDict copy(dict.keyType(), dict.valueType());
    for (const auto& item : dict) {
      copy.insert(item.key(), with_tensors(item.value(), other));
    }
    return copy;
  }
  return value;
}

} // namespace

void visit_tensors_in(
    const IValue& value,
    const std::function<void(const at::Tensor&)>& use) {
  with_tensors(value, [&](const at::Tensor& t) {
    use(t);
    return t;
  });
}

void visit_tensors_in(
    const torch::jit::Stack& values,
    const std::function<void(const at::Tensor&)>& use) {
  for (const auto& value : values) {
    visit_tensors_in(value, use);
  }
}

at::Tensor ScriptTensors::add(const at::Tensor& t) {
  // Creates a DTensor, because sharding rules give the shapes of more operators
  // than LibTorch's meta kernels.
  at::Tensor standing = replicate_tensor(
      at::empty(
          t.sizes(), at::TensorOptions(t.scalar_type()).device(c10::kMeta)),
      DeviceMesh(c10::kCPU, {1}, {0}));
  graph_.inputs.push_back({define(standing), t});
  standing_.emplace(t.unsafeGetTensorImpl(), standing);
  return standing;
}

void ScriptTensors::add_held(const at::Tensor& t) {
  if (standing_.count(t.unsafeGetTensorImpl()) == 0) {
    add(t);
  }
}

IValue ScriptTensors::add_given(const IValue& value) {
  return with_tensors(value, [&](const at::Tensor& t) { return add(t); });
}

const at::Tensor* ScriptTensors::find(const at::Tensor& t) const {
  if (values_.count(t.unsafeGetTensorImpl()) > 0) {
    return &t;
  }
  const auto standing = standing_.find(t.unsafeGetTensorImpl());
  return standing == standing_.end() ? nullptr : &standing->second;
}

bool ScriptTensors::is_read(const at::Tensor& t) const {
  return find(t) != nullptr;
}

at::Tensor ScriptTensors::describe(const at::Tensor& t) {
  const auto* known = find(t);
  return known != nullptr ? *known : add(t);
}

IValue ScriptTensors::described(const IValue& value) {
  return with_tensors(
      value, [this](const at::Tensor& t) { return describe(t); });
}

OperatorGraph::Value ScriptTensors::define(const at::Tensor& t) {
  const auto value = graph_.new_value();
  values_[t.unsafeGetTensorImpl()] = value;
  alive_.push_back(t);
  return value;
}

std::vector<OperatorGraph::Value> ScriptTensors::values_in(
    const IValue& value) const {
  std::vector<OperatorGraph::Value> values;
  visit_tensors_in(value, [&](const at::Tensor& t) {
    if (const auto* known = find(t)) {
      values.push_back(value_of(*known));
    }
  });
  return values;
}

OperatorGraph::Argument argument_of(
    const IValue& value,
    const ScriptTensors& tensors) {
  if (value.isTensor() && value.toTensor().defined()) {
    return tensors.value_of(value.toTensor());
  }
  if (!value.isTensorList() && !value.isOptionalTensorList()) {
    return value;
  }
  std::vector<OperatorGraph::Item> items;
  for (const IValue& item : value.toListRef()) {
    if (item.isTensor() && item.toTensor().defined()) {
      items.emplace_back(tensors.value_of(item.toTensor()));
    } else {
      items.emplace_back(item);
    }
  }
  return items;
}

// --- functions that only TorchScript has
// --------------------------------------

namespace {

// Allowed functions that only TorchScript has (dim, get_device, is_contiguous,
// numel and storage_offset until LibTorch 2.11). Functions outside this list
// print, warn, save files, draw seeds, start processes, or run for a time that
// an argument determines.
constexpr std::string_view kScriptAten =
    "Bool Complex ComplexImplicit Delete Float FloatImplicit Int IntImplicit "
    "ScalarImplicit Size __and__ __contains__ __derive_index __getitem__ "
    "__interpolate __is__ __isnot__ __lshift__ __not__ __or__ __range_length "
    "__round_to_zero_floordiv __rshift__ __upsample __upsample_bilinear "
    "__upsample_nearest __xor__ _get_tracing_state _grad_sum_to_size "
    "_infer_size _list_to_tensor _ncf_unsqueeze _ncf_view _no_grad_fill_ "
    "_no_grad_normal_ _no_grad_uniform_ _no_grad_zero_ _pack_sequence "
    "_set_item _size_if_not_equal _tensor_to_list _unsafe_index "
    "_unsafe_index_put _unwrap_optional acos acosh add add_ all angle any "
    "append as_tensor asin asinh atan atan2 atanh broadcast_shapes ceil clear "
    "copy copy_ copysign cos cosh count cpu cuda degrees dequantize device "
    "dict dim div divmod einsum element_size endswith eq erf erfc exp expm1 "
    "extend fabs find floor floordiv fmod format frexp gamma gcd ge get "
    "get_autocast_dtype get_device gt has_torch_function index index_put "
    "index_put_ insert is_autocast_cpu_enabled is_autocast_enabled "
    "is_contiguous is_grad_enabled is_non_overlapping_and_dense is_scripting "
    "is_strides_like_format isfinite isinf isnan items join keys ldexp le len "
    "lgamma list log log10 log1p lower lstrip lt mH mT mathremainder matrix_H "
    "modf mul mul_ ne neg numel numpy_T polar pop popitem pow radians "
    "remainder remove replace reverse round rstrip select setdefault sin sinh "
    "size slice sort sorted split sqrt startswith storage_offset str stride "
    "strip sub sum sym_size sym_stride tan tanh tensor to update upper values";
constexpr std::string_view kScriptPrim =
    "AutogradAdd BroadcastSizes ChunkSizes ConstantChunk EnumName EnumValue "
    "IfThenElse ModuleContainerIndex NumToTensor StringIndex TupleIndex "
    "TupleUnpack Uninitialized abs data device dtype index is_cpu is_cuda "
    "is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_nested is_quantized "
    "is_sparse is_sparse_csr is_vulkan is_xla is_xpu itemsize layout max "
    "min name nbytes rangelist requires_grad tolist type unchecked_cast "
    "unchecked_unwrap_optional";

// Splits a text of names separated by blanks.
Names names_in(std::string_view text) {
  const auto names = c10::split(text, ' ');
  return {names.begin(), names.end()};
}

// Returns true for a function that is not a dispatcher operator
// ("prim::ListConstruct", "aten::len") and only computes.
bool script_function_only_computes(std::string_view kind) {
  static const Names aten = names_in(kScriptAten);
  static const Names prim = names_in(kScriptPrim);
  const auto colons = kind.find("::"); // in all names of functions
  const auto space = kind.substr(0, colons);
  const auto name = kind.substr(colons + 2);
  return (space == "aten" && aten.count(name) > 0) ||
      (space == "prim" && prim.count(name) > 0);
}

IValue list_of(const jit::Stack& items, const c10::Type& type) {
  const auto element = type.expectRef<c10::ListType>().getElementType();
  if (*element == *c10::OptionalType::ofTensor()) {
    OptionalTensors list; // isOptionalTensorList() is true for this type alone
    for (const auto& item : items) {
      list.push_back(item.toOptional<at::Tensor>());
    }
    return list;
  }
  c10::impl::GenericList list(element);
  for (const auto& item : items) {
    list.push_back(item);
  }
  return list;
}

IValue dict_of(const jit::Stack& items, const c10::Type& type) {
  const auto& types = type.expectRef<c10::DictType>();
  c10::impl::GenericDict dict(types.getKeyType(), types.getValueType());
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    dict.insert_or_assign(items[i], items[i + 1]);
  }
  return dict;
}

jit::Stack items_of(const IValue& value) {
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return jit::Stack(elements.begin(), elements.end());
  }
  return value.toListRef().vec();
}

} // namespace

void run_function(const jit::Node& node, jit::Stack& stack) {
  const auto kind = kind_of(node);
  if (kind == "prim::ListConstruct") {
    stack = {list_of(stack, *node.output()->type())};
  } else if (kind == "prim::DictConstruct") {
    stack = {dict_of(stack, *node.output()->type())};
  } else if (kind == "prim::TupleConstruct") {
    stack = {c10::ivalue::Tuple::create(std::move(stack))};
  } else if (kind == "prim::ListUnpack" || kind == "prim::TupleUnpack") {
    stack = items_of(stack[0]);
    TORCH_INTERNAL_ASSERT(stack.size() == node.outputs().size());
  } else {
    DTENSOR_CHECK_NOT_IMPLEMENTED(
        script_function_only_computes(kind),
        "[find_tp_plan] {} may have side effects. It is not read.",
        kind);
    node.getOperation()(stack);
  }
}

bool makes_tensors(const jit::Stack& results, const jit::Stack& given) {
  std::set<const void*> known;
  visit_tensors_in(given, [&](const at::Tensor& t) {
    known.insert(t.unsafeGetTensorImpl());
  });
  bool makes = false;
  visit_tensors_in(results, [&](const at::Tensor& t) {
    makes = makes || known.count(t.unsafeGetTensorImpl()) == 0;
  });
  return makes;
}

} // namespace dtensor::torchscript
