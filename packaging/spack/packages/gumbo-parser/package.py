# Not among Spack's own packages: the HTML5 parser of the data pipeline.
from spack.package import *


class GumboParser(AutotoolsPackage):
    """An HTML5 parser in C."""

    git = "https://codeberg.org/gumbo-parser/gumbo-parser.git"
    license("Apache-2.0")
    version("0.10.1", tag="0.10.1")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("autoconf", type="build")
    depends_on("automake", type="build")
    depends_on("libtool", type="build")

    def autoreconf(self, spec, prefix):
        Executable("./autogen.sh")()
