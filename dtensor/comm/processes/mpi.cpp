// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/built_in_backends_impl.h>

#include <dtensor/comm/mpi_module.h>
#include <dtensor/error.h>

#include <dlfcn.h>
#include <cstdlib>
#include <filesystem>
#include <mutex>

namespace dtensor::detail {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOpenMpi = "openmpi";
constexpr const char* kMpich = "mpich";

// Variables that the launcher of each MPI implementation sets in its processes.
// OpenMPI uses PMIx under Slurm's srun.
constexpr struct {
  const char* variable;
  const char* implementation;
} kMarks[] = {
    {"OMPI_COMM_WORLD_RANK", kOpenMpi},
    {"PMI_RANK", kMpich},
    {"PMIX_RANK", kOpenMpi}};

std::string implementation_for(std::string_view name) {
  if (name == kOpenMpi || name == kMpich) {
    return std::string(name);
  }
  for (const auto& mark : kMarks) {
    if (std::getenv(mark.variable) != nullptr) {
      return mark.implementation;
    }
  }
  DTENSOR_THROW(
      "[mpi] this process was not started by an MPI launcher: "
      "OMPI_COMM_WORLD_RANK, PMI_RANK and PMIX_RANK are not set. Start it with "
      "mpirun, set the backend to \"openmpi\" or \"mpich\", or use \"gloo\".");
}

// Returns the folder that contains this library.
fs::path own_folder() {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&own_folder), &info);
  return fs::absolute(info.dli_fname).parent_path();
}

using Entry = decltype(&dtensor_mpi_module);

Entry entry_of(const std::string& implementation) {
  const fs::path folder = own_folder();
  const fs::path file = folder / ("libdtensor_" + implementation + ".so");
  DTENSOR_CHECK(
      fs::exists(file),
      "[mpi] dtensor was built without {}: there is no {} in {}. Install its "
      "development package (lib{}-dev) and rebuild dtensor, or use \"gloo\".",
      implementation,
      file.filename().string(),
      folder.string(),
      implementation);
  // RTLD_GLOBAL: OpenMPI's own plugins resolve their symbols in the global
  // scope.
  void* const module = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  const char* const why = module == nullptr ? dlerror() : "";
  DTENSOR_CHECK(
      module != nullptr,
      "[mpi] {} cannot be loaded: {}. Install the MPI that dtensor was built "
      "with, or use \"gloo\".",
      file.string(),
      why);
  return reinterpret_cast<Entry>(dlsym(module, "dtensor_mpi_module"));
}

// The MPI module of this process, never unloaded.
struct Loaded {
  std::mutex mutex;
  std::string implementation;
  const MpiModule* module = nullptr;
};

Loaded& loaded() {
  static auto* const only = new Loaded;
  return *only;
}

const MpiModule* module_or_null() {
  auto& mine = loaded();
  const std::lock_guard lock(mine.mutex);
  return mine.module;
}

} // namespace

bool uses_mpi(std::string_view name) {
  return name == "mpi" || name == kOpenMpi || name == kMpich ||
      name == "hierarchical-mpi";
}

void load_mpi(std::string_view name) {
  const std::string wanted = implementation_for(name);
  auto& mine = loaded();
  const std::lock_guard lock(mine.mutex);
  DTENSOR_CHECK(
      mine.module == nullptr || mine.implementation == wanted,
      "[mpi] this process already uses {} and cannot use {} too. Use one of "
      "them.",
      mine.implementation,
      wanted);
  if (mine.module == nullptr) {
    mine.module = entry_of(wanted)();
    mine.implementation = wanted;
  }
}

void begin_mpi(int64_t rank, int64_t size) {
  module_or_null()->begin(rank, size);
}

void end_mpi(bool has_failed) {
  if (const MpiModule* const module = module_or_null()) {
    module->end(has_failed);
  }
}

GroupBackendPtr make_mpi(GroupMembers members, const RendezvousInfo& place) {
  const MpiModule* const module = module_or_null();
  DTENSOR_CHECK(
      module != nullptr,
      "[mpi] MPI is not initialized in this process, and all ranks must "
      "initialize it together. Pass backend \"mpi\" to init_process_group.");
  return module->make(std::move(members), place);
}

} // namespace dtensor::detail
