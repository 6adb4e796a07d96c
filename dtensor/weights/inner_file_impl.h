// SPDX-License-Identifier: BSD-3-Clause
// Names of files that a list (an index, checkpoint.json) gives: they must stay
// in the list's folder.
#pragma once

#include <string>

namespace dtensor::detail {

/// Says why `name`, which the file `list` names, is not read; empty if it may
/// be. A name is a relative path without "..". Symbolic links may lead to the
/// list's folder, or, where the list is a link itself, to the folder that holds
/// its target: a cache of Hugging Face keeps all files behind such links.
std::string problem_of_inner_file(
    const std::string& list,
    const std::string& name);

} // namespace dtensor::detail
