"""Functions that worker processes import."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pregel_async import entrypoint, task


@dataclass
class Point:
    """A dataclass that is sent to a process and back."""

    x: int
    tags: list[str]


class Odd(Exception):
    """An exception that can be pickled."""


def writes_its_pid(state: Any) -> None:
    """Write the process id to a file, and run forever."""
    path = Path(state["path"])
    path.with_suffix(".part").write_text(str(os.getpid()))
    path.with_suffix(".part").rename(path)
    threading.Event().wait()


def adds(state: Any) -> dict[str, Any]:
    state["bag"]["numbers"].append(4)
    state["point"].tags.append("there")
    return {"log": [type(state).__name__, str(os.getpid())], "bag": state["bag"], "point": state["point"]}


def fails(state: Any) -> None:
    raise Odd("over there")


def returns_what_cannot_be_pickled(state: Any) -> Any:
    return {"log": threading.Lock()}


def raises_what_cannot_be_pickled(state: Any) -> None:
    raise type("Local", (Exception,), {})("no")


def dies(state: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def doubles(number: int, *, plus: int = 0) -> int:
    return 2 * number + plus


@task(on_timeout="process", timeout=1000)
def triples(number: int, *, plus: int = 0) -> list[int]:
    return [3 * number + plus, os.getpid()]


@entrypoint(on_timeout="process")
def squares(number: int) -> list[int]:
    return [number * number, os.getpid()]
