// SPDX-License-Identifier: BSD-3-Clause
// Names of files that a list gives (an index, checkpoint.json). These files
// must be in the list's folder.
#pragma once

#include <string>

namespace dtensor::detail {

/// Returns why `name`, which the file `list` contains, must not be read, or an
/// empty text. A name must be a relative path without "..". Symbolic links may
/// lead to the list's folder. If the list is itself a link, they may also lead
/// to the folder of its target, because a Hugging Face cache keeps all files
/// behind such links.
std::string problem_of_inner_file(
    const std::string& list,
    const std::string& name);

} // namespace dtensor::detail
