"""A callback handler that records the tree of runs that it sees."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage


class Seen:
    """A run that a handler was told of."""

    def __init__(self, kind: str, name: str, inputs: Any, depth: int, tags: Any, metadata: Any) -> None:
        self.kind = kind
        self.name = name
        self.inputs = inputs
        self.depth = depth
        self.tags: list[str] = list(tags or ())
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.ended = "open"
        self.output: Any = None


class Recorder(BaseCallbackHandler):
    """Records runs in the order of their starts."""

    def __init__(self) -> None:
        self.runs: dict[Any, Seen] = {}

    @property
    def tree(self) -> list[str]:
        """The names of the runs, indented by their depth, and how each has ended."""
        return [f"{'  ' * run.depth}{run.name} {run.ended}" for run in self.runs.values()]

    def named(self, name: str) -> Seen:
        return next(run for run in self.runs.values() if run.name == name)

    def _started(
        self, kind: str, inputs: Any, run_id: Any, parent_run_id: Any, tags: Any, metadata: Any, name: str
    ) -> None:
        depth = self.runs[parent_run_id].depth + 1 if parent_run_id is not None else 0
        self.runs[run_id] = Seen(kind, name, inputs, depth, tags, metadata)

    def _ended(self, run_id: Any, how: str, output: Any) -> None:
        self.runs[run_id].ended, self.runs[run_id].output = how, output

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: Any, parent_run_id: Any = None, tags: Any = None, **more: Any
    ) -> None:
        self._started("chain", inputs, run_id, parent_run_id, tags, more.get("metadata"), more["name"])

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: Any, parent_run_id: Any = None, tags: Any = None, **more: Any
    ) -> None:
        self._started("chat_model", messages, run_id, parent_run_id, tags, more.get("metadata"), "model")

    def on_tool_start(
        self, serialized: Any, input_str: Any, *, run_id: Any, parent_run_id: Any = None, tags: Any = None, **more: Any
    ) -> None:
        self._started("tool", input_str, run_id, parent_run_id, tags, more.get("metadata"), serialized["name"])

    def on_chain_end(self, outputs: Any, *, run_id: Any, **more: Any) -> None:
        self._ended(run_id, "done", outputs)

    def on_chain_error(self, error: BaseException, *, run_id: Any, **more: Any) -> None:
        self._ended(run_id, type(error).__name__, None)

    def on_llm_end(self, response: Any, *, run_id: Any, **more: Any) -> None:
        self._ended(run_id, "done", response)

    def on_tool_end(self, output: Any, *, run_id: Any, **more: Any) -> None:
        self._ended(run_id, "done", output)


def model(*said: str) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter([AIMessage(each) for each in said or ("hello there",) * 20]))
