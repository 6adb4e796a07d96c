// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/sample_inputs_impl.h>

#include <dtensor/error.h>

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <exception>
#include <string>

namespace dtensor::detail {
namespace {

constexpr const char* kSamples = "data/sample_inputs/";

[[noreturn]] void refuse_samples(
    const std::string& path,
    const std::string& why) {
  DTENSOR_THROW_VALUE(
      "[Program] {}: its sample inputs cannot be read: {}. Pass your own "
      "inputs.",
      path,
      why);
}

// Returns the first line of another library's message.
std::string first_line(const char* text) {
  const std::string all = text;
  return all.substr(0, all.find('\n'));
}

// Checks that the tensor lies within its storage. LibTorch's reader does not
// check the sizes, strides and offset of a file.
void check_within_storage(const at::Tensor& t, const std::string& path) {
  if (!t.defined() || t.layout() != at::kStrided || !t.has_storage()) {
    refuse_samples(path, "they contain a tensor that is not dense");
  }
  const auto elements =
      static_cast<int64_t>(t.storage().nbytes() / t.itemsize());
  int64_t last = t.storage_offset();
  bool fits = last >= 0 && t.numel() >= 0;
  for (int64_t d = 0; d < t.dim() && t.numel() > 0; ++d) {
    const auto steps = t.size(d) - 1;
    int64_t reach = 0;
    fits = fits && steps >= 0 && t.stride(d) >= 0 &&
        !__builtin_mul_overflow(steps, t.stride(d), &reach) &&
        !__builtin_add_overflow(last, reach, &last);
  }
  fits = fits && (t.numel() == 0 || last < elements);
  if (!fits) {
    refuse_samples(
        path,
        detail::format_text(
            "a tensor of shape {} is larger than its storage", t.sizes()));
  }
}

void collect_tensors(const c10::IValue& value, std::vector<at::Tensor>& all) {
  if (value.isTensor()) {
    all.push_back(value.toTensor());
  } else if (value.isTuple()) {
    for (const auto& item : value.toTupleRef().elements()) {
      collect_tensors(item, all);
    }
  } else if (value.isList()) {
    for (const auto& item : value.toListRef()) {
      collect_tensors(item, all);
    }
  } else if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    for (const auto& item : dict) {
      collect_tensors(item.value(), all);
    }
  }
}

std::vector<at::Tensor> tensors_in(
    const std::string& bytes,
    const std::string& path) {
  const NestedArchive archive(bytes, path);
  if (archive.sizes().count(kByteOrder) > 0) {
    check_byte_order(archive.read(kByteOrder), path, "its sample inputs");
  }
  const auto pickle = archive.read("data.pkl");
  if (const auto problem = pickle_problem(pickle, archive.sizes());
      !problem.empty()) {
    refuse_samples(path, problem);
  }
  std::vector<at::Tensor> tensors;
  collect_tensors(
      torch::jit::pickle_load({bytes.begin(), bytes.end()}), tensors);
  for (const auto& t : tensors) {
    check_within_storage(t, path);
  }
  return tensors;
}

} // namespace

std::vector<at::Tensor> read_sample_inputs(const Pt2Archive& archive) {
  const auto& path = archive.path();
  const auto names = archive.names_in(kSamples);
  DTENSOR_CHECK_VALUE(
      !names.empty(),
      "[Program] {} has no sample inputs. Pass your own inputs.",
      path);
  const auto bytes = archive.read(kSamples + names[0]);
  try {
    return tensors_in(bytes, path);
  } catch (const c10::ValueError&) {
    throw;
  } catch (const c10::Error& error) {
    refuse_samples(path, first_line(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    refuse_samples(path, first_line(error.what()));
  }
}

} // namespace dtensor::detail
