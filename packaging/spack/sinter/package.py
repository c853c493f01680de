# Spack recipe: copy the folder `sinter` into a repository's packages/, or add it with `spack repo add`.
from spack.package import *


class Sinter(CMakePackage):
    """One program for the whole life of a language model: plan, data, train, tune, evaluate, quantize, serve."""

    license("Apache-2.0")
    version("main", branch="main")

    variant("mpi", default=True, description="Several ranks by MPI")

    depends_on("cxx", type="build")
    depends_on("c", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("python@3.9:", type="build")
    depends_on("fmt")
    depends_on("spdlog+fmt_external")
    depends_on("nlohmann-json")
    depends_on("tomlplusplus")
    depends_on("cli11")
    depends_on("utf8proc")
    depends_on("pcre2")
    depends_on("zlib-api")
    depends_on("highway")
    depends_on("openmpi", when="+mpi")

    generator("ninja")

    def cmake_args(self):
        return [self.define_from_variant("SINTER_MPI", "mpi"), self.define("SINTER_TESTS", False)]

    def install(self, spec, prefix):
        mkdirp(prefix.bin)
        install(join_path(self.build_directory, "sinter"), prefix.bin)
