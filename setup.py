"""The one thing pyproject.toml cannot say: compile what has a compiled twin if a C compiler is at hand, and go on without."""

from setuptools import Extension, setup

try:
    from Cython.Build import cythonize

    extensions = cythonize(
        [
            Extension("penstock.protocol._columns", ["src/penstock/protocol/_columns.pyx"], optional=True),
            Extension("penstock.protocol._requests", ["src/penstock/protocol/_requests.pyx"], optional=True),
            Extension(
                "penstock.protocol._stream_messages", ["src/penstock/protocol/_stream_messages.pyx"], optional=True
            ),
            Extension("penstock.protocol._tuples", ["src/penstock/protocol/_tuples.pyx"], optional=True),
            Extension("penstock.server._inner_loop", ["src/penstock/server/_inner_loop.pyx"], optional=True),
            Extension("penstock.storage._blocks", ["src/penstock/storage/_blocks.pyx"], optional=True),
            Extension(
                "penstock.types.stream._column_buffers",
                ["src/penstock/types/stream/_column_buffers.pyx"],
                optional=True,
            ),
        ]
    )
except ImportError:  # a build without isolation and without Cython: the pure twins do the work
    extensions = []

setup(ext_modules=extensions)
