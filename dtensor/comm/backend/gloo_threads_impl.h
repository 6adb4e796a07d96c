// SPDX-License-Identifier: BSD-3-Clause
// Errors in Gloo's own threads. If a message has another size than the
// receiver's buffer (ranks call different collectives, for example), or if a
// connection fails while Gloo answers a message, Gloo throws in a thread
// without a handler. Such an exception would end the process.
#pragma once

#include <string>

namespace dtensor::detail {

/// Installs a terminate handler. From then on, a thread that throws an
/// exception of Gloo stops permanently instead of ending the process. The main
/// thread and exceptions of other types end the process as before.
void stop_failing_gloo_threads();

/// Returns the error of a Gloo thread that stopped in this way; empty if there
/// is none. The object that the thread served must then not be destroyed,
/// because its destructor would wait for the thread.
std::string gloo_thread_failure();

} // namespace dtensor::detail
