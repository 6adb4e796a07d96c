// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/scopes/plain_operand_impl.h>

#include <ATen/DTensorState.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/error.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/path/in_backward_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/tensor/dispatch_keys_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>
#include <dtensor/torch_internals.h>

#include <torch/library.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace dtensor::detail {
namespace {

std::string describe_plain_tensor(const at::Tensor& plain) {
  return shape_text(plain.scalar_type(), plain.sizes());
}

// Returns the memory of a dense tensor as bytes.
at::Tensor bytes_of(const at::Tensor& t) {
  return at::from_blob(
      t.data_ptr(), {static_cast<int64_t>(t.nbytes())}, at::kByte);
}

bool all_alike(const std::vector<std::string>& texts) {
  return std::ranges::all_of(
      texts, [&](const auto& text) { return text == texts[0]; });
}

// Returns true if this rank's tensor equals the tensor of the group's first
// rank.
bool is_that_of_first(const at::Tensor& plain, Group& group) {
  if (!all_alike(group.all_gather_strings(describe_plain_tensor(plain)))) {
    return false; // on all ranks
  }
  const auto dense = plain.contiguous();
  const auto mine = bytes_of(dense);
  return at::equal(group.broadcast(mine, 0), mine);
}

// Returns true if the tensor is equal on all ranks of the mesh. All ranks get
// the same result, so that all of them throw.
bool is_same_on_ranks(const at::Tensor& plain, const DeviceMesh& mesh) {
  bool same = true;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    same &= is_that_of_first(plain, get_group(mesh, m));
  }
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const auto all =
        get_group(mesh, m).all_gather_strings(same ? "same" : "differs");
    same = all_alike(all) && all[0] == "same";
  }
  return same;
}

void check_same_on_ranks(
    const c10::FunctionSchema& schema,
    const at::Tensor& plain,
    size_t arg,
    const Spec& beside) {
  DTENSOR_CHECK_VALUE(
      is_same_on_ranks(plain, beside.mesh()),
      "[{}] argument \"{}\", a plain {} next to {}, differs between ranks. "
      "Draw it from the same seed on every rank, or make it a DTensor.",
      name_of(schema.operator_name()),
      schema.arguments()[arg].name(),
      describe_plain_tensor(plain),
      beside);
}

// Returns true if a plain tensor counts as equal on all ranks: a number, or a
// tensor without elements.
bool means_same(const at::Tensor& plain) {
  return plain.numel() <= 1 || at::get_dtensor_allow_implicit_replication();
}

// Returns true for plain tensors that must become DTensors. Most calls have no
// such tensor.
bool is_to_place(const at::Tensor& t) {
  return !is_dtensor(t) && !means_same(t);
}

// Returns true if all DTensors are replicated over one mesh, the mesh of
// `like`, and the plain tensors can be compared.
bool may_place_plain(c10::ArrayRef<c10::IValue> args, const Spec& like) {
  bool may = like.mesh().contains_this_rank() &&
      mesh_groups(like.mesh()) != nullptr && !in_backward();
  visit_tensors(args, [&](const at::Tensor& t, size_t, int) {
    if (is_dtensor(t)) {
      may = may && spec_of(t)->is_replicated() &&
          spec_of(t)->mesh() == like.mesh() && !t.is_meta();
    } else if (!means_same(t)) {
      may = may && !t.is_meta() && t.layout() == at::kStrided &&
          !(c10::GradMode::is_enabled() && t.requires_grad());
    }
  });
  return may;
}

// Compares the numbers that a program writes to a sum over ranks. Rank 0 writes
// its number, and the other ranks write 0, so a number that differs between
// ranks would be lost.
void check_written_numbers(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> args,
    const Spec& written) {
  if (may_split_plain() || !written.mesh().contains_this_rank() ||
      mesh_groups(written.mesh()) == nullptr) {
    return;
  }
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int) {
    if (!is_dtensor(t) && t.numel() == 1 && !t.is_meta() &&
        !t.unsafeGetTensorImpl()->is_wrapped_number()) {
      check_same_on_ranks(schema, t, arg, written);
    }
  });
}

// Returns true for a list of tensors, such as the argument of cat and stack,
// but not for indices.
bool is_list_of_tensors(const c10::Argument& argument) {
  return argument.type()->kind() == c10::TypeKind::ListType &&
      argument.type()->expectRef<c10::ListType>().getElementType()->kind() ==
      c10::TypeKind::TensorType;
}

// Returns advice for frequent mistakes: one tensor is written and the other is
// not.
const char* advice(
    const c10::FunctionSchema& schema,
    const at::Tensor& plain,
    size_t arg,
    const Spec& beside) {
  // LibTorch's clip_grad_norm_ multiplies gradients this way.
  if (arg == 0 && is_written(schema.arguments()[0]) && beside.dim() == 0) {
    return " To clip plain and distributed gradients together, call "
           "dtensor::clip_grad_norm_ (C++), or clip inside "
           "implicit_replication() (Python).";
  }
  if (plain.sizes() != beside.sizes()) {
    return "";
  }
  if (is_written(schema.arguments()[arg])) {
    return " If the optimizer took steps before the parameter became a "
           "DTensor, call distribute_optimizer_state(optimizer) (C++), or "
           "create the optimizer again (Python).";
  }
  // copy_ and set_ give their argument this name.
  const auto& name = schema.arguments()[arg].name();
  return arg == 1 && (name == "src" || name == "source")
      ? " To set the values of a model, call set_model_state_dict."
      : "";
}

} // namespace

void check_plain_format(
    const c10::FunctionSchema& schema,
    const at::Tensor& plain,
    size_t arg,
    const Spec& beside) {
  DTENSOR_CHECK(
      has_dense_format(plain),
      "[{}] got mixed plain tensor and DTensor: argument \"{}\" is a plain {} "
      "next to {}, and DTensors do not support this format. Convert it to a "
      "dense tensor and distribute it with distribute_tensor, or call the "
      "operator on local tensors (to_local()).",
      name_of(schema.operator_name()),
      schema.arguments()[arg].name(),
      describe_format(plain),
      beside);
}

void check_plain_operand(
    const c10::FunctionSchema& schema,
    const at::Tensor& plain,
    size_t arg,
    const Spec& beside) {
  check_plain_format(schema, plain, arg, beside);
  if (const auto* scope = current_decomposition();
      scope != nullptr && !means_same(plain)) {
    if (!scope->may_replicate()) {
      scope->refuse(
          name_of(schema.operator_name()),
          "gets a plain tensor created inside the operator");
    }
    return;
  }
  DTENSOR_CHECK(
      means_same(plain),
      "[{}] got mixed plain tensor and DTensor: argument \"{}\" is a plain {} "
      "next to {}. Make it a DTensor with distribute_tensor or from_local, or "
      "call the operator on local tensors (to_local()). If the plain tensor is "
      "the same on every rank, implicit_replication() accepts it as "
      "replicated, and distribute_module distributes the tensors of a "
      "module.{}",
      name_of(schema.operator_name()),
      schema.arguments()[arg].name(),
      describe_plain_tensor(plain),
      beside,
      advice(schema, plain, arg, beside));
}

void check_same_mesh(
    std::string_view name,
    const Spec& first,
    const Spec& other) {
  DTENSOR_CHECK(
      other.mesh() == first.mesh(),
      "[{}] the operands live on different meshes: {} and {}. Bring them to "
      "one mesh: from_local(x.full_tensor(), mesh) replicates x on a mesh.",
      name,
      first,
      other);
}

bool may_split_plain() {
  const auto* scope = current_decomposition();
  return (scope != nullptr && scope->may_replicate_all()) || in_backward() ||
      in_implicit_replication() || at::get_dtensor_allow_implicit_replication();
}

void check_plain_is_not_split(
    const OpInfo& info,
    const OpCall& call,
    const Decision& decision) {
  const auto partial = std::ranges::find_if(
      call.inputs,
      [](const OpInput& input) { return input.spec->has_partial(); });
  // LibTorch turns the number in `x[i] = number` into a tensor and copies it.
  if (partial == call.inputs.end() || info.traits.accepts_plain_source ||
      may_split_plain()) {
    return;
  }
  size_t index = 0;
  visit_tensors(call.args, [&](const at::Tensor& t, size_t arg, int) {
    const auto& wanted = decision.inputs[index++];
    const auto& argument = call.schema.arguments()[arg];
    const bool joins = is_list_of_tensors(argument) ||
        (wanted != nullptr && wanted->has_partial());
    DTENSOR_CHECK_VALUE(
        is_dtensor(t) || !joins || t.unsafeGetTensorImpl()->is_wrapped_number(),
        "[{}] argument \"{}\", a plain {}, would be a term of the sum over "
        "ranks of {}, and ranks may have different values of it. Call "
        "full_tensor() on the DTensor first, or pass from_local(value, mesh) "
        "if all ranks have the same value.",
        info.name,
        argument.name(),
        describe_plain_tensor(t),
        *partial->spec);
  });
}

void distribute_equal_plain(const OpInfo& info, c10::IValue* args) {
  const c10::ArrayRef<c10::IValue> all(args, info.num_args);
  const auto like = first_spec(all);
  if (like != nullptr && like->has_partial()) {
    check_written_numbers(info.op.schema(), all, *like);
  }
  if (!any_tensor(all, is_to_place) || like == nullptr ||
      !may_place_plain(all, *like)) {
    return;
  }
  check_owned_by_this_rank(info.name, *like);
  const auto& schema = info.op.schema();
  visit_tensors(all, [&](const at::Tensor& t, size_t arg, int) {
    if (is_to_place(t)) {
      check_same_on_ranks(schema, t, arg, *like);
    }
  });
  map_tensors(args, info.num_args, [&](const at::Tensor& t, size_t) {
    return is_to_place(t) ? place_plain(t, *like) : t;
  });
}

namespace {

// Errors of operators on DTensors and plain tensors of another format: sparse,
// quantized or nested. LibTorch dispatches such a call to the key of this
// format for the backend of DTensors, which has no kernels of its own.

using c10::DispatchKey;

constexpr DispatchKey kOtherFormats[] = {
    DispatchKey::Sparse,
    DispatchKey::SparseCsr,
    DispatchKey::Quantized,
    DispatchKey::NestedTensor};

void refuse_other_format(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto args = last_args(*stack, schema.arguments().size());
  if (const auto like = first_spec(args)) {
    visit_tensors(args, [&](const at::Tensor& t, size_t arg, int) {
      if (!is_dtensor(t)) {
        check_plain_format(schema, t, arg, *like);
      }
    });
  }
  DTENSOR_THROW_NOT_IMPLEMENTED(
      "[{}] makes or takes a sparse, quantized or nested tensor, which "
      "DTensors do not support. Call it on the local tensors.",
      name_of(schema.operator_name()));
}

bool takes_two_tensors(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return arguments.size() > 1 &&
      arguments[0].type()->kind() == c10::TypeKind::TensorType &&
      arguments[1].type()->kind() == c10::TypeKind::TensorType;
}

// Returns LibTorch's operators on two tensors whose kernel for any backend
// would precede the fallback, and then read the memory of the DTensor.
std::vector<c10::OperatorHandle> operators_with_kernels() {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<c10::OperatorHandle> found;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = name.name.starts_with("aten::")
        ? dispatcher.findSchema(name)
        : std::nullopt;
    if (op && takes_two_tensors(op->schema()) &&
        (op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op->hasKernelForDispatchKey(
             DispatchKey::CompositeExplicitAutogradNonFunctional))) {
      found.push_back(*op);
    }
  }
  return found;
}

torch::CppFunction refusal() {
  return torch::CppFunction::makeFromBoxedFunction<&refuse_other_format>();
}

bool install_refusals() {
  // Never destroyed, because operators are called until the process ends.
  static auto& libraries = *new std::vector<torch::Library>;
  libraries.reserve(2 * std::size(kOtherFormats));
  const auto ops = operators_with_kernels();
  for (const auto format : kOtherFormats) {
    const auto at_backend = [&](c10::BackendComponent backend) {
      return c10::toRuntimePerBackendFunctionalityKey(format, backend);
    };
    const auto key = at_backend(kDTensorBit);
    libraries.emplace_back(torch::Library::IMPL, "_", key, __FILE__, __LINE__)
        .fallback(refusal());
    auto& aten = libraries.emplace_back(
        torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    for (const auto& op : ops) {
      if (op.hasKernelForDispatchKey(
              at_backend(c10::BackendComponent::CPUBit))) {
        aten.impl(name_of(op.operator_name()).c_str(), refusal());
      }
    }
  }
  return true;
}

const bool refuses_other_formats = install_refusals();

} // namespace
} // namespace dtensor::detail
