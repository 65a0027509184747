"""Names that a package exports and loads when somebody asks for them: what a program does not use costs it nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exported(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The package's `__getattr__`.

    Args:
        modules: where each name is: ".sqlite".
    """

    def get(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module, package), name)

    return get
