// SPDX-License-Identifier: BSD-3-Clause
#include "sample_file.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstring>
#include <fstream>
#include <sstream>

namespace dtensor::randomized {
namespace {

enum Flag : uint8_t { kRequiresGrad = 1, kWrapped = 2, kConj = 4, kNeg = 8 };

class Writer {
 public:
  explicit Writer(bool with_values) : with_values_(with_values) {}

  template <class T>
  void number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void text(const std::string& value) {
    number<uint64_t>(value.size());
    bytes_ += value;
  }
  /// Writes a value. Returns false for a value that the file format does not
  /// support.
  bool value(const c10::IValue& v, int64_t max_elements);
  std::string take() {
    return std::move(bytes_);
  }

 private:
  bool list(c10::ArrayRef<c10::IValue> items, int64_t max_elements);
  bool tensor(const at::Tensor& t, int64_t max_elements);

  std::string bytes_;
  bool with_values_;
};

// Returns the number of elements from the first to the last in memory.
int64_t span_of(at::IntArrayRef sizes, at::IntArrayRef strides) {
  int64_t span = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) {
      return 0;
    }
    span += (sizes[d] - 1) * strides[d];
  }
  return span;
}

bool Writer::tensor(const at::Tensor& t, int64_t max_elements) {
  if (!t.defined()) {
    number('U');
    return true;
  }
  if (t.layout() != at::kStrided || !t.device().is_cpu() || t.is_quantized() ||
      t.is_nested() || t._is_zerotensor() ||
      t.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    return false;
  }
  const auto span = span_of(t.sizes(), t.strides());
  if (span > max_elements || t.numel() > max_elements) {
    return false;
  }
  const auto* impl = t.unsafeGetTensorImpl();
  number('T');
  number(static_cast<uint8_t>(t.scalar_type()));
  number(static_cast<uint8_t>(
      (t.requires_grad() ? kRequiresGrad : 0) |
      (impl->is_wrapped_number() ? kWrapped : 0) | (t.is_conj() ? kConj : 0) |
      (t.is_neg() ? kNeg : 0)));
  number(static_cast<uint64_t>(t.dim()));
  for (int64_t d = 0; d < t.dim(); ++d) {
    number(t.size(d));
    number(t.stride(d));
  }
  if (with_values_ || !(t.is_floating_point() || t.is_complex())) {
    number(span);
    bytes_.append(
        static_cast<const char*>(t.unsafeGetTensorImpl()->data()),
        static_cast<size_t>(span * t.element_size()));
  }
  return true;
}

bool Writer::list(c10::ArrayRef<c10::IValue> items, int64_t max_elements) {
  number('L');
  number<uint64_t>(items.size());
  for (const auto& item : items) {
    if (!value(item, max_elements)) {
      return false;
    }
  }
  return true;
}

bool Writer::value(const c10::IValue& v, int64_t max_elements) {
  if (v.isTensor()) {
    return tensor(v.toTensor(), max_elements);
  }
  if (v.isNone() || v.isGenerator()) {
    number('N');
  } else if (v.isBool()) {
    number('b');
    number(v.toBool());
  } else if (v.isInt()) {
    number('i');
    number(v.toInt());
  } else if (v.isDouble()) {
    number('d');
    number(v.toDouble());
  } else if (v.isComplexDouble()) {
    number('c');
    number(v.toComplexDouble());
  } else if (v.isString()) {
    number('s');
    text(v.toStringRef());
  } else if (v.isDevice()) {
    number('D');
    text(v.toDevice().str());
  } else if (v.isList()) {
    return list(v.toList().vec(), max_elements);
  } else {
    return false;
  }
  return true;
}

class Reader {
 public:
  explicit Reader(std::istream& in) : in_(in) {}

  template <class T>
  T number() {
    T value{};
    in_.read(reinterpret_cast<char*>(&value), sizeof(T));
    return value;
  }
  std::string text() {
    std::string value(number<uint64_t>(), '\0');
    in_.read(value.data(), static_cast<std::streamsize>(value.size()));
    return value;
  }
  c10::IValue value(const c10::TypePtr& type);

 private:
  c10::IValue list(const c10::TypePtr& type);
  at::Tensor tensor();

  std::istream& in_;
};

at::Tensor Reader::tensor() {
  const auto dtype = static_cast<at::ScalarType>(number<uint8_t>());
  const auto flags = number<uint8_t>();
  const auto dim = number<uint64_t>();
  std::vector<int64_t> sizes(dim);
  std::vector<int64_t> strides(dim);
  for (uint64_t d = 0; d < dim; ++d) {
    sizes[d] = number<int64_t>();
    strides[d] = number<int64_t>();
  }
  const auto span = number<int64_t>();
  const auto memory = at::empty({span}, at::TensorOptions(dtype));
  in_.read(
      static_cast<char*>(memory.data_ptr()),
      static_cast<std::streamsize>(memory.nbytes()));
  auto t = memory.as_strided(sizes, strides);
  t._set_conj((flags & kConj) != 0);
  t._set_neg((flags & kNeg) != 0);
  if ((flags & kWrapped) != 0) {
    t.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  t.set_requires_grad((flags & kRequiresGrad) != 0);
  return t;
}

c10::IValue Reader::list(const c10::TypePtr& type) {
  const auto element = type->kind() == c10::TypeKind::ListType
      ? type->castRaw<c10::ListType>()->getElementType()
      : c10::AnyType::get();
  std::vector<c10::IValue> items;
  for (auto n = number<uint64_t>(); n > 0; --n) {
    items.push_back(value(element));
  }
  const auto typed = [&](auto&& convert) {
    using Item = std::decay_t<decltype(convert(items[0]))>;
    std::vector<Item> values;
    for (const auto& item : items) {
      values.push_back(convert(item));
    }
    return values;
  };
  switch (element->kind()) {
    case c10::TypeKind::TensorType:
      return typed([](const c10::IValue& v) { return v.toTensor(); });
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return typed([](const c10::IValue& v) { return v.toInt(); });
    case c10::TypeKind::FloatType:
      return typed([](const c10::IValue& v) { return v.toDouble(); });
    case c10::TypeKind::BoolType: {
      c10::List<bool> bools;
      for (const auto& item : items) {
        bools.push_back(item.toBool());
      }
      return bools;
    }
    default: {
      c10::impl::GenericList list(element);
      for (auto& item : items) {
        list.push_back(std::move(item));
      }
      return list;
    }
  }
}

c10::IValue Reader::value(const c10::TypePtr& given) {
  auto type = given;
  if (type->kind() == c10::TypeKind::OptionalType) {
    type = type->castRaw<c10::OptionalType>()->getElementType();
  }
  switch (number<char>()) {
    case 'b':
      return number<bool>();
    case 'i':
      return number<int64_t>();
    case 'd':
      return number<double>();
    case 'c':
      return number<c10::complex<double>>();
    case 's':
      return text();
    case 'D':
      return c10::Device(text());
    case 'L':
      return list(type);
    case 'T':
      return tensor();
    case 'U':
      return at::Tensor();
    default:
      return {};
  }
}

// Returns the schema of the sample's overload in this program's LibTorch, or
// null if it differs.
const c10::FunctionSchema* schema_of(const Sample& sample) {
  const auto op =
      c10::Dispatcher::singleton().findSchema({sample.name, sample.overload});
  return op ? &op->schema() : nullptr;
}

} // namespace

std::optional<std::string> to_bytes(
    const std::string& name,
    const std::string& overload,
    c10::ArrayRef<const c10::IValue> arguments,
    int64_t max_elements) {
  Writer writer(true);
  writer.text(name);
  writer.text(overload);
  writer.number<uint64_t>(arguments.size());
  for (const auto& argument : arguments) {
    if (!writer.value(argument, max_elements)) {
      return std::nullopt;
    }
  }
  return writer.take();
}

std::string signature_of(
    const std::string& name,
    const std::string& overload,
    c10::ArrayRef<const c10::IValue> arguments) {
  Writer writer(false);
  writer.text(name);
  writer.text(overload);
  for (const auto& argument : arguments) {
    writer.value(argument, std::numeric_limits<int64_t>::max());
  }
  return writer.take();
}

void append_to_file(std::ostream& file, const std::string& bytes) {
  const uint64_t size = bytes.size();
  file.write(reinterpret_cast<const char*>(&size), sizeof(size));
  file.write(bytes.data(), static_cast<std::streamsize>(size));
}

std::vector<Sample> read_samples(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK_VALUE(file.good(), "cannot read the samples in ", path);
  std::vector<Sample> samples;
  Reader sizes(file);
  for (auto size = sizes.number<uint64_t>(); file.good();
       size = sizes.number<uint64_t>()) {
    std::string bytes(size, '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(size));
    std::istringstream in(bytes);
    Reader reader(in);
    Sample sample;
    sample.name = reader.text();
    sample.overload = reader.text();
    const auto count = reader.number<uint64_t>();
    const auto* schema = schema_of(sample);
    if (schema == nullptr || schema->arguments().size() != count) {
      continue;
    }
    for (const auto& argument : schema->arguments()) {
      sample.arguments.push_back(reader.value(argument.type()));
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

} // namespace dtensor::randomized
