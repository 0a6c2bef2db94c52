"""Compile the modules that have a compiled twin, where there is a C compiler.

Every `.pyx` file is an accelerated twin of a pure module, so a build that cannot compile it is still whole. The rest of
the build is described in pyproject.toml.
"""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCES = sorted(Path("src").rglob("*.pyx"))

twins = cythonize(
    [Extension(".".join(path.with_suffix("").parts[1:]), [str(path)]) for path in SOURCES],
    build_dir="build",  # the generated C stays out of the packages
)
for twin in twins:
    twin.optional = True  # cythonize does not carry this over from the extensions that it was given
    twin.extra_compile_args = ["-g0"]  # debugging information would double the size of a wheel

setup(ext_modules=twins)
