"""The one part that is compiled, and may be left out: docs/adr/0003. Everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "tallystick._native",
            ["src/tallystick/_native.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            optional=True,  # without a compiler the install goes on, and the Python codec is used
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
