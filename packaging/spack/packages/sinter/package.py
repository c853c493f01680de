# spack repo add packaging/spack        spack dev-build sinter@main        (in the repository's root)
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
    depends_on("zstd")
    depends_on("brotli")
    depends_on("xxhash")
    depends_on("gumbo-parser")
    depends_on("simdjson")
    depends_on("boost@1.75:")
    depends_on("openssl")
    depends_on("prometheus-cpp")
    depends_on("highway")
    depends_on("openmpi", when="+mpi")

    generator("ninja")

    def cmake_args(self):
        return [self.define_from_variant("SINTER_MPI", "mpi"), self.define("SINTER_TESTS", False)]

    def install(self, spec, prefix):
        make = which("make")
        make("install-files", f"BUILD={self.build_directory}", f"PREFIX={prefix}")
