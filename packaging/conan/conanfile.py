# SPDX-License-Identifier: BSD-3-Clause
"""Conan 2 recipe of dtensor, for a LibTorch that is already on this machine.

    conan create packaging/conan -c user.dtensor:libtorch=<LibTorch>

<LibTorch> is the folder of an archive from pytorch.org or of Python's package
torch. docs/guides/installing.md gives the reasons.
"""
import re
from pathlib import Path

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy
from conan.tools.system.package_manager import Apt

CONF = "user.dtensor:libtorch"
SOURCES = ["CMakeLists.txt", "LICENSE", "cmake/*", "dtensor/*", "launcher/*",
           "packaging/third_party.txt"]
ROOT = Path(__file__).resolve().parents[2]


class DtensorRecipe(ConanFile):
    name = "dtensor"
    description = "Distributed tensors and tensor parallelism for LibTorch"
    license = "BSD-3-Clause"
    topics = ("pytorch", "libtorch", "distributed", "tensor-parallelism")
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"
    # LibTorch's version and kind, as in "2.13 cpu": part of the package's ID.
    # They are read from the LibTorch in the configuration.
    options = {"torch": [None, "ANY"]}
    default_options = {"torch": None}
    required_conan_version = ">=2.4"

    def set_version(self):
        text = (ROOT / "dtensor/version.h").read_text()
        self.version = ".".join(re.findall(r"#define DTENSOR_VERSION_\w+ (\d+)", text))

    def export_sources(self):
        for pattern in SOURCES:
            copy(self, pattern, ROOT, self.export_sources_folder)

    def configure(self):
        if self._torch():
            self.options.torch = self._torch_version()

    def layout(self):
        self.folders.root = "../.."
        cmake_layout(self)

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("[dtensor] needs Linux.")
        if not self._torch():
            raise ConanInvalidConfiguration(
                f"[dtensor] {CONF} names no folder with share/cmake/Torch. Pass "
                f"-c {CONF}=<LibTorch>.")

    def system_requirements(self):
        # Header libraries that only the build needs.
        Apt(self).install(["nlohmann-json3-dev", "libxxhash-dev", "libcli11-dev"],
                          check=True)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        toolchain.cache_variables.update({
            "CMAKE_INSTALL_LIBDIR": "lib",
            "CMAKE_PREFIX_PATH": str(self._torch()),
            "CMAKE_UNITY_BUILD": True,
            "CMAKE_UNITY_BUILD_BATCH_SIZE": "24",
            "DTENSOR_TESTS": False,
            "DTENSOR_EXAMPLES": False,
            "DTENSOR_PACKAGE": True,
        })
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, Path(self.package_folder, "licenses"))

    def package_info(self):
        # Consumers use the installed dtensorConfig.cmake, which finds LibTorch.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake"]
        if self._torch():
            self.cpp_info.builddirs.append(str(self._torch()))
            self.runenv_info.append_path("LD_LIBRARY_PATH", str(self._torch() / "lib"))

    def _torch(self):
        folder = Path(self.conf.get(CONF, default="", check_type=str))
        return folder if (folder / "share/cmake/Torch").is_dir() else None

    def _torch_version(self):
        file = self._torch() / "share/cmake/Torch/TorchConfigVersion.cmake"
        version = re.search(r'PACKAGE_VERSION "(\d+\.\d+)', file.read_text())[1]
        cuda = any((self._torch() / "lib").glob("libtorch_cuda.*"))
        return f"{version} {'cuda' if cuda else 'cpu'}"
