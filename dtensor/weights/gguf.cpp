// SPDX-License-Identifier: BSD-3-Clause
// Reader of GGUF: counts, key-value pairs, a description and place of each
// tensor, and the bytes of all tensors. Numbers are little-endian; sizes begin
// with the innermost.
//
// Accepts the files that llama.cpp accepts. Tensors lie one after the other,
// each at a multiple of the alignment, which is a power of two. No key or name
// occurs twice. A file that is one of several of a model is refused.
#include <dtensor/weights/weight_contents_impl.h>

#include <dtensor/weights/gguf_cursor_impl.h>

#include <dtensor/format_text.h>

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

namespace dtensor::detail {
namespace {

struct Entry {
  WeightInfo info;
  const GgufFormat* stored_as = nullptr;
  uint64_t bytes = 0;
  uint64_t offset = 0; // from the start of the tensors' bytes
};

// Sets the format of a tensor and its number of bytes. Rows consist of full
// blocks.
void set_format(Entry& entry, uint32_t number, const GgufCursor& cursor) {
  const auto name = shown_name(entry.info.name);
  entry.stored_as = gguf_format(number);
  if (entry.stored_as == nullptr) {
    cursor.refuse(
        detail::format_text("{} has the unknown type {}", name, number));
  }
  const auto& format = entry.stored_as->format;
  const auto& sizes = entry.info.sizes;
  const auto row = sizes.empty() ? 1 : sizes.back();
  if (row % format.block != 0) {
    cursor.refuse(detail::format_text(
        "{} has rows of {} elements, not a multiple of the block size {}",
        name,
        row,
        format.block));
  }
  entry.info.format = format.name;
  entry.info.dtype = format.dtype;
  entry.bytes = static_cast<uint64_t>(numel(sizes) / format.block) *
      static_cast<uint64_t>(format.bytes);
}

Entry read_entry(GgufCursor& cursor) {
  Entry entry;
  entry.info.name = cursor.text();
  const auto ndim = cursor.number<uint32_t>();
  if (ndim > 8) {
    cursor.refuse(detail::format_text(
        "{} has {} dimensions", shown_name(entry.info.name), ndim));
  }
  for (uint32_t d = 0; d < ndim; ++d) {
    const auto size = cursor.number<uint64_t>();
    if (!add_size(entry.info.sizes, size)) {
      cursor.refuse(detail::format_text(
          "{} has the invalid size {}", shown_name(entry.info.name), size));
    }
  }
  std::ranges::reverse(entry.info.sizes);
  set_format(entry, cursor.number<uint32_t>(), cursor);
  entry.offset = cursor.number<uint64_t>();
  return entry;
}

uint64_t alignment_of(
    const WeightFile::Contents& contents,
    const GgufCursor& at) {
  const auto found = contents.metadata.find(kGgufAlignment);
  if (found == contents.metadata.end()) {
    return 32;
  }
  const auto value = static_cast<uint64_t>(std::get<int64_t>(found->second));
  if (!std::has_single_bit(value)) {
    at.refuse(detail::format_text(
        "{} is {}, not a power of two", kGgufAlignment, value));
  }
  return value;
}

// Refuses a model in several files: its first file lacks most layers.
void check_is_whole(
    const WeightFile::Contents& contents,
    const MappedFile& file) {
  const auto found = contents.metadata.find("split.count");
  if (found == contents.metadata.end()) {
    return;
  }
  const auto* count = std::get_if<int64_t>(&found->second);
  if (count == nullptr || *count > 1) {
    refuse_file(
        file.path(),
        detail::format_text(
            "split.count is {}: it is one of several files of a model",
            count == nullptr ? "not a number" : std::to_string(*count)),
        "Merge them with llama-gguf-split --merge");
  }
}

// Returns the tensors sorted by their place in the file.
std::vector<const Entry*> sorted_by_place(const std::vector<Entry>& entries) {
  std::vector<const Entry*> sorted;
  sorted.reserve(entries.size());
  for (const auto& entry : entries) {
    sorted.push_back(&entry);
  }
  std::ranges::sort(sorted, [](const auto* a, const auto* b) {
    return std::tie(a->offset, a->bytes) < std::tie(b->offset, b->bytes);
  });
  return sorted;
}

// Throws unless the tensors fill the file from `data` on, one after the other,
// each padded to the alignment.
void check_places(
    const MappedFile& file,
    const std::vector<Entry>& entries,
    uint64_t data,
    uint64_t alignment) {
  const auto data_bytes = data > file.size() ? 0 : file.size() - data;
  uint64_t at = 0;
  for (const auto* entry : sorted_by_place(entries)) {
    const auto refuse = [&](const std::string& why) {
      const auto& name = shown_name(entry->info.name);
      refuse_file(
          file.path(),
          detail::format_text(
              "the weight {} is at offset {}{}", name, entry->offset, why));
    };
    if (entry->offset % alignment != 0) {
      refuse(format_text(", not a multiple of the alignment {}", alignment));
    }
    if (entry->offset < at) {
      refuse(format_text(", inside the previous weight, which ends at {}", at));
    }
    if (entry->offset > at) {
      refuse(format_text(", but the previous weight ends at {}", at));
    }
    if (at > data_bytes || entry->bytes > data_bytes - at) {
      refuse(format_text(
          " and ends at {}, beyond the {} bytes of data",
          at + entry->bytes,
          data_bytes));
    }
    at += (entry->bytes + alignment - 1) / alignment * alignment;
  }
  if (data_bytes > at) {
    refuse_file(
        file.path(),
        detail::format_text(
            "its weights have {} bytes, but its data has {}", at, data_bytes));
  }
}

} // namespace

void read_gguf(WeightFile::Contents& contents, MappedFilePtr mapped) {
  const auto& file = *contents.files.emplace_back(std::move(mapped));
  GgufCursor cursor(file);
  cursor.number<uint32_t>(); // "GGUF"
  const auto version = cursor.number<uint32_t>();
  if (version != 2 && version != 3) {
    cursor.refuse(
        detail::format_text("its GGUF version is {}, not 2 or 3", version));
  }
  const auto tensors = cursor.count(24);
  const auto pairs = cursor.count(13);
  read_gguf_pairs(contents.metadata, cursor, pairs);
  check_is_whole(contents, file);
  std::vector<Entry> entries;
  for (uint64_t i = 0; i < tensors; ++i) {
    entries.push_back(read_entry(cursor));
  }
  const auto alignment = alignment_of(contents, cursor);
  const auto data = (cursor.position() + alignment - 1) / alignment * alignment;
  check_places(file, entries, data, alignment);
  for (auto& entry : entries) {
    contents.add(
        std::move(entry.info),
        entry.stored_as->can_be_read ? &entry.stored_as->format : nullptr,
        file,
        data + entry.offset);
  }
}

} // namespace dtensor::detail
