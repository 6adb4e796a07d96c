# SPDX-License-Identifier: BSD-3-Clause
"""Builds the first program of README.md with the package, and runs it."""
from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout


class DtensorTest(ConanFile):
    settings = "os", "arch", "compiler", "build_type"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        program = f"{self.cpp.build.bindir}/hello"
        self.run(program, env="conanrun")
        self.run(f"dtensor-run -n 2 {program}", env="conanrun")
