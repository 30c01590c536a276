"""What pyproject.toml cannot say: the extension module is left out where no compiler is found."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "penstock.wire._native",
            [f"src/penstock/wire/{name}.c" for name in ("_native", "_json", "_documents", "_values")],
            depends=[f"src/penstock/wire/{name}.h" for name in ("_json", "_values")],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
