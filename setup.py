"""What pyproject.toml cannot say: the extension module is left out where no compiler is found."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "penstock.wire._native",
            ["src/penstock/wire/_native.c", "src/penstock/wire/_json.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
