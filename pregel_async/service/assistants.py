"""`Assistant`: a graph under a name of its own, with defaults for its runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from checkpoint_savers.runs.rows import assistant_of

from .._api.compiled import Graph
from .._checks.config import merge_configs
from ..errors import ConfigError
from ..types import Config, RunnableConfig


class Assistant(msgspec.Struct, frozen=True):
    """A graph with defaults for its runs. Several assistants of a service may have one graph.

        service = RunService({"brief": Assistant(agent, config={"configurable": {"words": 50}})}, saver)

    Attributes:
        graph: the compiled graph.
        config: settings of each run; those of `start` are merged over them.
        context: the context of runs that are started without one.
        metadata: JSON values by which the runs can be searched; those of `start` are merged over them.
    """

    graph: Graph[Any, Any]
    config: Config | None = None
    context: Any = None
    metadata: Mapping[str, Any] = {}

    def merged(self, config: Config | None) -> RunnableConfig:
        """Return the config of a run.

        Args:
            config: that of `start`.

        Raises:
            ConfigError: a key is unknown, or a value has the wrong type.
        """
        return merge_configs(merge_configs({}, self.config), config)


def assistants_of(given: Mapping[str, Graph[Any, Any] | Assistant]) -> dict[str, Assistant]:
    """Return what a service was given as assistants.

    Args:
        given: graphs and assistants by name.

    Raises:
        ConfigError: there is none, one is neither a compiled graph nor an assistant, or a name has the form of a route.
    """
    if not given:
        raise ConfigError("a service has at least one graph: RunService({'agent': graph}, saver)")
    made: dict[str, Assistant] = {}
    for name, one in given.items():
        assistant = one if isinstance(one, Assistant) else Assistant(one)
        if not isinstance(cast("object", assistant.graph), Graph):
            raise ConfigError(f"graph {name!r} of the service is a {type(assistant.graph).__name__}: compile it first")
        if assistant_of(name) != name:
            raise ConfigError(f"graph {name!r} of the service: '@' and a number at the end are a version")
        made[name] = assistant
    return made
