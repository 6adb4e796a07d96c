// SPDX-License-Identifier: BSD-3-Clause
// Errors in Gloo's own threads. If a message has another size than the
// receiver's buffer (ranks call different collectives, for example), Gloo
// throws in a thread without a handler. That would end the process.
#pragma once

#include <string>

namespace dtensor::detail {

/// Installs a terminate handler. After that, a Gloo thread that throws
/// gloo::EnforceNotMet stops permanently instead of ending the process.
/// Exceptions of other threads and types end the process as before.
void stop_failing_gloo_threads();

/// Returns the message thrown by such a thread; empty if there is none. The
/// object that the thread served must then not be destroyed: its destructor
/// would wait for the thread.
std::string gloo_thread_failure();

} // namespace dtensor::detail
