"""Describe the point at which a run begins to write a namespace."""

from __future__ import annotations

from typing import Final

import msgspec

from checkpoint_savers.records import CheckpointId

from ..._core.board import Board
from .call_site import CallSite
from .commit_writers import CommitWriter
from .encoder import Encoder
from .task_records import TaskRecords

NO_CHECKPOINT: Final = CheckpointId("")
"""The value of `StartPoint.at` if no checkpoint was loaded."""


class StartPoint(msgspec.Struct, kw_only=True):
    """The point at which a run begins to write a namespace.

    Attributes:
        site: where the graph is called from.
        writer: the namespace's writer, positioned at the loaded checkpoint.
        encoder: the namespace's encoder.
        records: the task records of the open superstep.
        board: the loaded board; None if nothing is stored.
        at: the loaded checkpoint; empty if nothing is stored.
        scope: the thread id that the ids of the open superstep's tasks contain: this thread's, or that of the thread
            from which the superstep was copied.
        step: the superstep of the loaded checkpoint; -1 if nothing is stored.
        branches: the first write starts a new branch here.
        continues: an earlier attempt at the same call made this state, so its input is applied already.
        ran_instead: the name of the graph that the earlier attempt ran, if the graph or its input differs; else empty.
    """

    site: CallSite
    writer: CommitWriter
    encoder: Encoder
    records: TaskRecords
    scope: str
    board: Board | None = None
    at: CheckpointId = NO_CHECKPOINT
    step: int = -1
    branches: bool = False
    continues: bool = False
    ran_instead: str = ""

    def continue_call(self, site: CallSite) -> None:
        """Note that an earlier attempt at the same call made this state.

        Args:
            site: the call site of the earlier attempt.
        """
        self.continues = True
        if site.identity.is_other(self.site.identity):
            self.ran_instead = site.identity.graph
        self.site = msgspec.structs.replace(self.site, identity=self.site.identity.or_else(site.identity))
