"""Compile the modules that have a compiled twin, where there is a C compiler.

Every `.pyx` file is an accelerated twin of a pure module, so a build that cannot compile it is still whole. Cython runs
when extensions are built, and not for a source distribution or for metadata. The rest of the build is described in
pyproject.toml.
"""

from pathlib import Path

from setuptools import Extension, setup

SOURCES = sorted(Path("src").rglob("*.pyx"))

setup(
    ext_modules=[
        Extension(
            ".".join(path.with_suffix("").parts[1:]),
            [str(path)],
            extra_compile_args=["-g0"],  # debugging information would double the size of a wheel
            optional=True,
        )
        for path in SOURCES
    ],
    options={"build_ext": {"cython_c_in_temp": True}},  # the generated C stays out of the packages
)
