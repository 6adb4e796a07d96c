// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/shard_buffers_impl.h>

#include <ATen/ops/cat.h>

namespace dtensor::detail {

Sizes resized(SizesRef sizes, int64_t dim, int64_t size) {
  Sizes result(sizes);
  result[static_cast<size_t>(dim)] = size;
  return result;
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

std::vector<Sizes> shapes_of(const std::vector<at::Tensor>& tensors) {
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

at::Tensor in_one_buffer(const std::vector<at::Tensor>& parts) {
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

} // namespace dtensor::detail
