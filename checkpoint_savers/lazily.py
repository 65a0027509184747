"""Names that a package exports and loads on first access: what a program does not use is not imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exported(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that loads names lazily.

    Args:
        package: the package's `__name__`.
        modules: name -> the module that defines it, relative to the package: ".sqlite".
    """

    def get(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module, package), name)

    return get
