// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/group/shard_buffers_impl.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>

namespace dtensor::detail {

Sizes resized(SizesRef sizes, int64_t dim, int64_t size) {
  Sizes result(sizes);
  result[static_cast<size_t>(dim)] = size;
  return result;
}

bool is_valid_shape(SizesRef sizes, int64_t most) {
  for (const int64_t size : sizes) {
    if (size < 0 || size > most) {
      return false;
    }
    most = size > 0 ? most / size : most;
  }
  return true;
}

std::vector<Sizes> shapes_along(SizesRef like, int64_t dim, SizesRef sizes) {
  std::vector<Sizes> shapes;
  for (const int64_t size : sizes) {
    shapes.push_back(resized(like, dim, size));
  }
  return shapes;
}

Sizes chunk_sizes(int64_t size, int64_t parts) {
  Sizes sizes;
  for (int64_t i = 0; i < parts; ++i) {
    sizes.push_back(chunk(size, parts, i).size());
  }
  return sizes;
}

Interval
shard_range_of(int64_t size, int64_t parts, SizesRef sizes, int64_t member) {
  if (sizes.empty()) {
    return chunk(size, parts, member);
  }
  const auto at = static_cast<size_t>(member);
  const int64_t begin = c10::sum_integers(sizes.slice(0, at));
  return {begin, begin + sizes[at]};
}

bool all_equal(SizesRef sizes) {
  return std::ranges::all_of(
      sizes, [&](int64_t size) { return size == sizes.front(); });
}

bool is_sole_owner(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1 &&
      tensor.storage().resizable();
}

Sizes counts_of(c10::ArrayRef<Sizes> shapes) {
  Sizes counts;
  for (const Sizes& shape : shapes) {
    counts.push_back(numel(shape));
  }
  return counts;
}

std::vector<Sizes> shapes_of(c10::ArrayRef<at::Tensor> tensors) {
  std::vector<Sizes> shapes;
  for (const at::Tensor& tensor : tensors) {
    shapes.emplace_back(tensor.sizes());
  }
  return shapes;
}

std::vector<at::Tensor>
split(const at::Tensor& input, int64_t dim, SizesRef sizes) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back(input.narrow(dim, begin, size));
    begin += size;
  }
  return parts;
}

at::Tensor in_one_buffer(c10::ArrayRef<at::Tensor> parts) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& part : parts) {
    flat.push_back(part.reshape({-1}));
  }
  return at::cat(flat);
}

std::vector<at::Tensor> out_of_buffer(
    const at::Tensor& buffer,
    c10::ArrayRef<Sizes> shapes) {
  std::vector<at::Tensor> parts = split(buffer, 0, counts_of(shapes));
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] = parts[i].view(shapes[i]);
  }
  return parts;
}

bool is_outermost(SizesRef sizes, int64_t dim) {
  return numel(sizes.slice(0, static_cast<size_t>(dim))) == 1;
}

at::Tensor
split_into_buffer(const at::Tensor& input, int64_t dim, SizesRef sizes) {
  return is_outermost(input.sizes(), dim)
      ? input.view({-1})
      : in_one_buffer(split(input, dim, sizes));
}

at::Tensor concat_from_buffer(
    const at::Tensor& buffer,
    c10::ArrayRef<Sizes> shapes,
    int64_t dim) {
  const Sizes& like = shapes.front();
  if (!is_outermost(like, dim)) {
    return at::cat(out_of_buffer(buffer, shapes), dim);
  }
  int64_t total = 0;
  for (const Sizes& shape : shapes) {
    total += shape[static_cast<size_t>(dim)];
  }
  return buffer.view(resized(like, dim, total));
}

at::Tensor string_tensor(const std::string& text) {
  at::Tensor bytes = at::empty(
      {static_cast<int64_t>(text.size())}, at::TensorOptions(at::kByte));
  std::ranges::copy(text, bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

std::vector<std::string> strings_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> texts;
  for (const at::Tensor& bytes : tensors) {
    const auto* begin = bytes.const_data_ptr<uint8_t>();
    texts.emplace_back(begin, begin + bytes.numel());
  }
  return texts;
}

} // namespace dtensor::detail
