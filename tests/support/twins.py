"""Both versions of a module that has a compiled twin, so that one set of tests runs on both."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path
from types import ModuleType


def pure_twin(module: ModuleType) -> ModuleType:
    """The module with its pure functions, whichever ones it chose for the server."""
    assert module.__file__ is not None
    before = os.environ.get("PENSTOCK_PURE")
    os.environ["PENSTOCK_PURE"] = "1"
    try:
        spec = importlib.util.spec_from_file_location(f"pure_{module.__name__.rpartition('.')[2]}", module.__file__)
        assert spec is not None and spec.loader is not None
        twin = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(twin)
    finally:
        if before is None:
            del os.environ["PENSTOCK_PURE"]
    return twin


def is_compilation_expected() -> bool:
    """Whether the compiled twin can be built here, and PENSTOCK_PURE does not ask for the pure one."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    possible = bool(shutil.which("cc") or shutil.which("gcc")) and headers.exists()
    return possible and not os.environ.get("PENSTOCK_PURE")
