"""Run a service of examples/ under uvicorn in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]


class ExampleServer:
    """A running service, by default on a free port.

    Attributes:
        url: where it listens.
        process: its process.
        said: the lines of its output.
    """

    def __init__(self, module: str, folder: Path, port: str, db: str, env: dict[str, str]) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", module, "--port", port, "--db", db],
            cwd=folder,
            env={**env, "PYTHONPATH": path},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.said: list[str] = []
        for line in self.process.stderr:
            self.said.append(line)
            found = re.search(r"running on (http://\S+)", line)
            if found is not None:
                self.url = found[1]
                break
        else:
            raise AssertionError("".join(self.said))
        self._rest = threading.Thread(target=self.said.extend, args=(self.process.stderr,))
        self._rest.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill the process, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        self._rest.join(60)
        assert self.process.stderr is not None
        self.process.stderr.close()

    @property
    def complaints(self) -> list[str]:
        """Return its unusual lines of output."""
        return [line for line in self.said if not line.startswith("INFO:")]
