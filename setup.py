"""What pyproject.toml cannot say: the extension module is left out where no compiler is found."""

import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools._distutils.ccompiler import new_compiler
from setuptools._distutils.errors import CCompilerError, DistutilsError
from setuptools._distutils.sysconfig import customize_compiler

MODULE = Extension(
    "penstock.wire._native",
    [f"src/penstock/wire/{name}.c" for name in ("_native", "_json", "_documents", "_values")],
    depends=[f"src/penstock/wire/{name}.h" for name in ("_json", "_values")],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    py_limited_api=True,
)


def has_compiler() -> bool:
    """Return whether a C compiler finds the headers of Python. Else the wheel must not have the tag of a platform."""
    compiler = new_compiler()
    customize_compiler(compiler)
    compiler.add_include_dir(sysconfig.get_path("include"))
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "probe.c"
        source.write_text("#include <Python.h>\n", encoding="ascii")
        try:
            compiler.compile([str(source)], output_dir=directory)
        except (CCompilerError, DistutilsError, OSError):
            return False
    return True


modules = [MODULE] if has_compiler() else []
if not modules:
    sys.stderr.write("No C compiler was found: Penstock is built without its native module, and is slower.\n")
setup(ext_modules=modules, options={"bdist_wheel": {"py_limited_api": "cp311"}})
