// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/wrap_impl.h>

#include <dtensor/comm/group/recorded_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dispatch_keys_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/pooled_impl.h>

#include <c10/core/Contiguity.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Layout.h>
#include <c10/util/StringUtil.h>

#include <atomic>
#include <mutex>

namespace dtensor::detail {
namespace {

constexpr const char* kNoData =
    "[DTensor] data_ptr() and storage() do not exist: a DTensor's data is "
    "spread over ranks. Call to_local() for the local tensor, or full_tensor() "
    "for the full tensor. To print a DTensor in C++, print DTensor(t). To save "
    "a model, call save_checkpoint (C++), or save what get_model_state_dict() "
    "returns with full_state_dict = true.";

// Keys of lazily conjugated or negated tensors: is_conj() and is_neg().
constexpr c10::DispatchKeySet kLazyValues{
    c10::DispatchKey::Conjugate,
    c10::DispatchKey::Negative};

// Returns the keys of a DTensor: PrivateUse3 and the local tensor's own
// backend, over which PrivateUse3 takes precedence. TensorImpl's constructor
// adds the autograd and ADInplaceOrView keys of PrivateUse3, or omits them in
// inference mode. Only the Meta bit would take precedence over PrivateUse3, so
// a DTensor of meta tensors has kInterceptKey instead.
c10::DispatchKeySet keys_for(const at::Tensor& local) {
  auto backend = local.key_set().highestBackendKey();
  c10::DispatchKeySet keys(c10::DispatchKey::Dense);
  if (C10_UNLIKELY(backend == c10::BackendComponent::MetaBit)) {
    backend = c10::BackendComponent::CPUBit;
    keys = keys.add(kInterceptKey);
  }
  return keys | c10::DispatchKeySet(backend) |
      c10::DispatchKeySet(kDTensorBit) |
      c10::getAutocastRelatedKeySetFromBackend(backend);
}

void set_message(c10::TensorImpl& impl) {
  impl.release_storage_and_set_meta_custom_data_ptr_error_msg_(kNoData);
}

struct DTensorImpl final : c10::TensorImpl, Pooled<DTensorImpl> {
  /// `local` is the local tensor, or a Pending one that will resemble `like`.
  template <class Local>
  DTensorImpl(Local&& local, SpecPtr spec, const at::Tensor& like)
      : TensorImpl(keys_for(like), like.dtype(), like.device()) {
    if (C10_UNLIKELY(is_inference() && !like.is_inference())) {
      // Views of normal tensors are normal tensors even in inference mode.
      key_set_ =
          key_set_ | c10::getAutogradRelatedKeySetFromBackend(kDTensorBit);
      set_version_counter(c10::VariableVersion(0));
    }
    set_shape(*spec);
    set_backend_meta(c10::make_intrusive<DTensorMeta>(
        std::forward<Local>(local), std::move(spec)));
    set_storage_access_should_throw();
  }
  explicit DTensorImpl(const DTensorImpl& like)
      : TensorImpl(like.key_set(), like.dtype(), like.device()) {}

  // Sets the error message lazily, because LibTorch calls this function before
  // it reads data. Setting two strings per tensor would take a quarter of an
  // operator's time.
  bool has_storage() const override {
    if (!explained_) {
      explain();
    }
    return false;
  }
  const c10::Storage& storage() const override {
    has_storage();
    return TensorImpl::storage();
  }

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override {
    return copied(version_counter, allow_tensor_metadata_change);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter,
      bool allow_tensor_metadata_change) const override {
    return copied(std::move(version_counter), allow_tensor_metadata_change);
  }

 private:
  // A faster set_sizes_and_strides(). It skips symbolic sizes, and the memory
  // formats that tensors of fewer than four dimensions cannot have. The
  // difference is a sixth of an operator's time on DTensors.
  void set_shape(const Spec& spec) {
    if (spec.dim() > 3) {
      set_sizes_and_strides(spec.sizes(), spec.strides());
      return;
    }
    sizes_and_strides_.set_sizes(spec.sizes());
    sizes_and_strides_.set_strides(spec.strides());
    numel_ = spec.numel();
    is_contiguous_ = c10::_compute_contiguous<int64_t>(
        spec.sizes(), spec.strides(), spec.numel());
    is_non_overlapping_and_dense_ = is_contiguous_ || is_dense(spec);
  }
  // True if the spec is dense. `spec` must not be contiguous, so a matrix has
  // more than one row and column.
  static bool is_dense(const Spec& spec) {
    return spec.dim() == 2
        ? spec.strides()[0] == 1 && spec.strides()[1] == spec.sizes()[0]
        : c10::_compute_non_overlapping_and_dense<int64_t>(
              spec.sizes(), spec.strides());
  }

  template <class Version>
  c10::intrusive_ptr<TensorImpl> copied(
      Version&& version_counter,
      bool allow_tensor_metadata_change) const {
    auto copy = c10::make_intrusive<DTensorImpl>(*this);
    copy_tensor_metadata(
        this,
        copy.get(),
        std::forward<Version>(version_counter),
        allow_tensor_metadata_change);
    copy->refresh_numel();
    copy->refresh_contiguous();
    return copy;
  }
  void explain() const {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (!explained_) {
      set_message(const_cast<DTensorImpl&>(*this));
      explained_ = true;
    }
  }

  mutable std::atomic<bool> explained_{false};
};

// Throws for a local tensor of the wrong shape or dtype. Registered rules and
// local kernels can cause this error.
[[noreturn]] void refuse_part(const at::Tensor& local, const Spec& spec) {
  DTENSOR_THROW_VALUE(
      "[DTensor] local tensor {} does not match {}; this rank has {} of it. If "
      "you registered a rule or local kernel, return the shape and dtype of "
      "the layout from it; otherwise, please report this.",
      shape_text(local.scalar_type(), local.sizes()),
      spec,
      shape_text(spec.dtype(), spec.local_sizes()));
}

// Makes the protected member key_set_ of TensorImpl accessible.
struct Keys : c10::TensorImpl {
  static constexpr auto of() {
    return &Keys::key_set_;
  }
};

} // namespace

at::Tensor wrap(at::Tensor local, SpecPtr spec) {
  if (C10_UNLIKELY(local.key_set().has_any(kLazyValues))) {
    local = local.resolve_conj().resolve_neg();
  }
  if (C10_UNLIKELY(
          local.sizes() != spec->local_sizes() ||
          local.dtype() != c10::scalarTypeToTypeMeta(spec->dtype()))) {
    refuse_part(local, *spec);
  }
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(!is_dtensor(local));
  const at::Tensor& like = local;
  return at::Tensor(c10::make_intrusive<DTensorImpl>(
      std::move(local), std::move(spec), like));
}

at::Tensor wrap(PendingPtr local, SpecPtr spec, const at::Tensor& like) {
  return at::Tensor(c10::make_intrusive<DTensorImpl>(
      std::move(local), std::move(spec), like));
}

std::string describe_format(const at::Tensor& t) {
  return t.is_nested()   ? "nested tensor"
      : t.is_quantized() ? "quantized tensor"
                         : c10::str("tensor of layout ", t.layout());
}

void check_dense(const char* where, const at::Tensor& t) {
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      has_dense_format(t),
      "[{}] expected a dense tensor, got a {}. Convert it to a dense tensor "
      "first.",
      where,
      describe_format(t));
}

void check_local_shape(
    const char* where,
    const at::Tensor& local,
    const Spec& spec) {
  DTENSOR_CHECK_VALUE(
      local.sizes() == spec.local_sizes(),
      "[{}] the local tensor has shape {}, but rank {} must hold {} of {}. "
      "Pass a local tensor of that shape (Shard gives the shapes of "
      "torch.chunk).",
      where,
      local.sizes(),
      spec.mesh().get_rank(),
      spec.local_sizes(),
      spec);
}

void refuse_format(
    const std::string& where,
    const char* what,
    const at::Tensor& t) {
  DTENSOR_THROW_NOT_IMPLEMENTED(
      "[{}] {} a {}, which DTensors do not support. Call it on the local "
      "tensors{}.",
      where,
      what,
      describe_format(t),
      t.is_nested() ? ", or create TransformerEncoder with "
                      "enable_nested_tensor = False (Python)"
                    : "");
}

void DTensorMeta::fetch() {
  const Recorded recorded("dtensor::wait");
  at::Tensor local = pending_->wait();
  TORCH_INTERNAL_ASSERT(local.sizes() == spec->local_sizes());
  local_ = std::move(local);
  pending_ = nullptr;
}

void explain_no_data(const at::Tensor& t) {
  set_message(*t.unsafeGetTensorImpl());
}

void add_intercept_key(const at::Tensor& t) {
  auto& keys = t.unsafeGetTensorImpl()->*Keys::of();
  keys = keys.add(kInterceptKey);
}

void remove_intercept_key(const at::Tensor& t) {
  auto& keys = t.unsafeGetTensorImpl()->*Keys::of();
  keys = keys.remove(kInterceptKey);
}

void rewrap(const at::Tensor& self, at::Tensor local, SpecPtr spec) {
  auto* impl = self.unsafeGetTensorImpl();
  const auto& before = meta_of(self);
  impl->set_sizes_and_strides(spec->sizes(), spec->strides());
  auto meta =
      c10::make_intrusive<DTensorMeta>(std::move(local), std::move(spec));
  meta->boundaries = before.boundaries;
  meta->view_facts = before.view_facts;
  impl->set_backend_meta(std::move(meta));
}

} // namespace dtensor::detail
