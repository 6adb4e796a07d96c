// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/autocast.h>

#include <ATen/autocast_mode.h>

namespace dtensor {

Autocast::Autocast(
    c10::DeviceType device_type,
    std::optional<c10::ScalarType> dtype,
    bool enabled,
    std::optional<bool> cache_enabled)
    : device_type_(device_type),
      was_enabled_(at::autocast::is_autocast_enabled(device_type)),
      was_dtype_(at::autocast::get_autocast_dtype(device_type)),
      was_caching_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_enabled(device_type, enabled);
  at::autocast::set_autocast_dtype(device_type, dtype.value_or(was_dtype_));
  at::autocast::set_autocast_cache_enabled(
      cache_enabled.value_or(was_caching_));
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  // Cached casts are invalid after parameters have changed.
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
  }
  at::autocast::set_autocast_enabled(device_type_, was_enabled_);
  at::autocast::set_autocast_dtype(device_type_, was_dtype_);
  at::autocast::set_autocast_cache_enabled(was_caching_);
}

} // namespace dtensor
