// SPDX-License-Identifier: BSD-3-Clause
// What Gloo's own threads throw. A message of another size than its receiver
// expects, as where ranks call different collectives, is an exception in a
// thread that nothing could catch it in, which would end the process.
#pragma once

#include <string>

namespace dtensor::detail {

/// From the first call on, a thread of Gloo's that throws gloo::EnforceNotMet
/// stops for good instead of ending the process. Exceptions of other threads
/// and types end it as before.
void stop_failing_gloo_threads();

/// What such a thread has thrown; empty if none has. What it served is then not
/// to be destroyed, since its destructor would wait for the thread.
std::string gloo_thread_failure();

} // namespace dtensor::detail
