// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/compare_replicas_impl.h>

#include <ATen/ops/sub.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/comm/group.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/debug/digest_avx2_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/meta_impl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iomanip>
#include <optional>
#include <sstream>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace dtensor::detail {

// Hashes are equal with and without AVX2, so ranks on different processors can
// compare them.
uint64_t digest_bytes(const void* bytes, size_t count) {
  static const auto avx2 = avx2_digest();
  return avx2 != nullptr ? avx2(bytes, count) : XXH3_64bits(bytes, count);
}

uint64_t digest_of(const at::Tensor& t) {
  uint64_t digest = static_cast<uint64_t>(t.scalar_type()) + 1;
  for (const auto size : t.sizes()) {
    digest = mix_digest(digest, static_cast<uint64_t>(size));
  }
  if (t.is_meta()) {
    return digest;
  }
  const auto values =
      t.detach().resolve_conj().resolve_neg().cpu().contiguous();
  return mix_digest(
      digest, digest_bytes(values.const_data_ptr(), values.nbytes()));
}

uint64_t LastDigest::of(const at::Tensor& tensor) {
  const auto& local = is_dtensor(tensor) ? local_of(tensor) : tensor;
  const bool is_same = local.is_same(local_) &&
      tensor_.lock().get() == tensor.unsafeGetTensorImpl() &&
      !tensor.is_inference() && !local.is_inference() &&
      version_of(tensor) == version_ && version_of(local) == local_version_;
  if (!is_same) {
    tensor_ = WeakTensor(tensor.getIntrusivePtr());
    local_ = local;
    version_ = version_of(tensor);
    local_version_ = version_of(local);
    digest_ = digest_of(local);
  }
  return digest_;
}

namespace {

std::string draw_text(const at::Tensor& draw) {
  const auto* values = draw.const_data_ptr<int64_t>();
  return detail::format_text("seed {} and position {}", values[0], values[1]);
}

// Returns "f32[4, 8]". A draw or a generator state has no elements to compare
// and returns "state".
std::string shape_of(const Replica& replica) {
  const auto& t = replica.tensor;
  if (!t.defined()) {
    return "none";
  }
  return replica.role == ReplicaRole::kDraw ||
          replica.role == ReplicaRole::kRandomState
      ? "state"
      : dtensor::shape_text(t.scalar_type(), t.sizes());
}

// Returns a value that is short enough for an error; empty for more than one
// number.
std::string value_of(const Replica& replica) {
  const auto& t = replica.tensor;
  if (!t.defined() || t.is_meta()) {
    return "";
  }
  if (replica.role == ReplicaRole::kDraw) {
    return draw_text(t);
  }
  return t.numel() == 1 && t.is_floating_point() ? c10::str(t.item<double>())
                                                 : "";
}

// A replica of one rank, as sent to the other ranks.
struct ReplicaLine {
  std::string title;
  std::string shape;
  std::string value;
  std::string digest;
};

std::string lines_of(const std::vector<Replica>& replicas) {
  std::ostringstream text;
  for (const auto& replica : replicas) {
    text << std::quoted(title_of(replica.role, replica.name))
         << std::quoted(shape_of(replica)) << std::quoted(value_of(replica))
         << std::quoted(std::to_string(replica.digest));
  }
  return text.str();
}

std::vector<ReplicaLine> parse_lines(const std::string& text) {
  std::vector<ReplicaLine> all;
  std::istringstream in(text);
  ReplicaLine line;
  while (in >> std::quoted(line.title) >> std::quoted(line.shape) >>
         std::quoted(line.value) >> std::quoted(line.digest)) {
    all.push_back(line);
  }
  return all;
}

using LinesByRank = std::vector<std::vector<ReplicaLine>>;

uint64_t fingerprint_of(const std::vector<Replica>& replicas) {
  uint64_t all = replicas.size();
  for (const auto& replica : replicas) {
    all = mix_digest(all, static_cast<uint64_t>(replica.role));
    all =
        mix_digest(all, digest_bytes(replica.name.data(), replica.name.size()));
    all = mix_digest(all, replica.digest);
  }
  return all;
}

// Takes one small all_reduce. All fingerprints are equal if and only if the
// largest fingerprint and the largest complement are both this rank's.
bool have_one_fingerprint(
    Group& group,
    const DeviceMesh& mesh,
    const std::vector<Replica>& replicas) {
  const auto mine = static_cast<int64_t>(fingerprint_of(replicas));
  const std::array<int64_t, 2> both = {mine, ~mine};
  const auto largest =
      group
          .all_reduce(
              at::tensor(both, at::kLong).to(mesh.device_type()),
              ReduceOp::kMax)
          .cpu();
  return std::equal(
      both.begin(), both.end(), largest.const_data_ptr<int64_t>());
}

// Returns "0.5 on rank 0; 0.7 on ranks 1, 2", in the order of the first ranks.
std::string text_by_value(
    const std::vector<std::string>& values,
    const std::vector<int64_t>& ranks) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> holders;
  for (size_t r = 0; r < values.size(); ++r) {
    auto found = std::ranges::find_if(
        holders, [&](const auto& holder) { return holder.first == values[r]; });
    if (found == holders.end()) {
      found = holders.insert(found, {values[r], {}});
    }
    found->second.push_back(ranks[r]);
  }
  std::vector<std::string> parts;
  for (const auto& [value, those] : holders) {
    parts.push_back(detail::format_text("{} on {}", value, rank_list(those)));
  }
  return c10::Join("; ", parts);
}

at::Tensor as_doubles(const at::Tensor& t) {
  const auto real = t.is_complex() ? at::view_as_real(t) : t;
  return real.to(at::kDouble);
}

struct Differences {
  std::vector<double> by_rank; // largest distance to the first rank's elements
  double magnitude = 0; // largest finite magnitude of the first rank's elements
};

// Compares tensors of equal shape with those of the first rank. Equal
// infinities and two NaN do not differ. All ranks of the group must call this
// function.
Differences
differences(Group& group, const DeviceMesh& mesh, const at::Tensor& tensor) {
  const auto mine = tensor.detach()
                        .resolve_conj()
                        .resolve_neg()
                        .to(mesh.device_type())
                        .contiguous();
  const auto first = as_doubles(group.broadcast(mine, 0));
  const auto own = as_doubles(mine);
  const auto is_equal =
      own.eq(first).logical_or(own.isnan().logical_and(first.isnan()));
  const auto distance =
      at::sub(own, first).abs().masked_fill(is_equal, 0).max().item<double>();
  Differences result;
  result.magnitude = first.abs()
                         .masked_fill(first.isfinite().logical_not(), 0)
                         .max()
                         .item<double>();
  std::string bytes(sizeof(distance), '\0');
  std::memcpy(bytes.data(), &distance, sizeof(distance));
  for (const auto& text : group.all_gather_strings(bytes)) {
    std::memcpy(&result.by_rank.emplace_back(), text.data(), sizeof(double));
  }
  return result;
}

bool are_equal(const std::vector<std::string>& texts) {
  return std::ranges::all_of(
      texts, [&](const auto& text) { return text == texts[0]; });
}

// The difference of replica `i` between ranks; empty if the difference is
// within tolerance.
class Difference {
 public:
  Difference(
      const ReplicaRanks& where,
      Group& group,
      const LinesByRank& all,
      double tolerance)
      : where_(where),
        group_(group),
        all_(all),
        tolerance_(tolerance) {}

  std::optional<std::string> text(size_t i, const Replica& mine) const {
    const auto digests = of_all(i, &ReplicaLine::digest);
    if (are_equal(digests)) {
      return std::nullopt;
    }
    const auto shapes = of_all(i, &ReplicaLine::shape);
    if (!are_equal(shapes)) {
      return text_by_value(shapes, group_.ranks());
    }
    const auto values = of_all(i, &ReplicaLine::value);
    if (shapes[0] == "state") {
      return values[0].empty() ? "the state on " + rank_list(others(digests)) +
              " differs from that on " + rank_list({group_.ranks()[0]})
                               : text_by_value(values, group_.ranks());
    }
    const auto [distances, magnitude] =
        differences(group_, where_.mesh, mine.tensor);
    const auto largest = largest_of(distances);
    if (largest <= tolerance_ * magnitude && tolerance_ > 0) {
      return std::nullopt;
    }
    return are_equal(values)
        ? distance_text(shapes[0], others(digests), largest)
        : text_by_value(values, group_.ranks());
  }

 private:
  std::vector<std::string> of_all(size_t i, std::string ReplicaLine::*field)
      const {
    std::vector<std::string> texts;
    for (const auto& lines : all_) {
      texts.push_back(lines[i].*field);
    }
    return texts;
  }
  // Ranks with a digest unlike the first rank's.
  std::vector<int64_t> others(const std::vector<std::string>& digests) const {
    std::vector<int64_t> ranks;
    for (size_t r = 0; r < digests.size(); ++r) {
      if (digests[r] != digests[0]) {
        ranks.push_back(group_.ranks()[r]);
      }
    }
    return ranks;
  }
  static double largest_of(const std::vector<double>& distances) {
    return *std::ranges::max_element(
        distances, [](double a, double b) { return std::isnan(b) || a < b; });
  }
  std::string distance_text(
      const std::string& shape,
      const std::vector<int64_t>& ranks,
      double largest) const {
    return detail::format_text(
        "the {} of {} {} by up to {} from that of rank {}",
        shape,
        rank_list(ranks),
        ranks.size() == 1 ? "differs" : "differ",
        std::abs(largest), // also of a NaN, whose sign means nothing
        group_.ranks()[0]);
  }

  const ReplicaRanks& where_;
  Group& group_;
  const LinesByRank& all_;
  double tolerance_;
};

void check_same_places(
    const ReplicaRanks& where,
    const Group& group,
    const LinesByRank& all,
    size_t i) {
  std::vector<std::string> places;
  for (const auto& lines : all) {
    places.push_back(i < lines.size() ? lines[i].title : "nothing more");
  }
  DTENSOR_CHECK(
      are_equal(places),
      "[CheckReplicas] the ranks of mesh dimension {} have reached different "
      "points: {}. Call the same modules in the same order on all of these "
      "ranks.",
      where.mesh.dim_label(where.dim),
      text_by_value(places, group.ranks()));
}

} // namespace

void compare_replicas(
    const ReplicaRanks& where,
    const std::vector<Replica>& replicas,
    double tolerance) {
  auto& group = get_group(where.mesh, where.dim);
  if (group.size() == 1 || have_one_fingerprint(group, where.mesh, replicas)) {
    return;
  }
  LinesByRank all;
  size_t most = 0;
  for (const auto& text : group.all_gather_strings(lines_of(replicas))) {
    all.push_back(parse_lines(text));
    most = std::max(most, all.back().size());
  }
  const Difference difference(where, group, all, tolerance);
  for (size_t i = 0; i < most; ++i) {
    check_same_places(where, group, all, i);
    const auto text = difference.text(i, replicas[i]);
    DTENSOR_CHECK(
        !text,
        "[CheckReplicas] {} differs between the ranks of mesh dimension {}: "
        "{}. {}",
        title_of(replicas[i].role, replicas[i].name),
        where.mesh.dim_label(where.dim),
        *text,
        advice_for(replicas[i].role));
  }
}

} // namespace dtensor::detail
