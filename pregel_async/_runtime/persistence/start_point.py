"""Where the writing of a namespace begins, as it was loaded."""

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
"""Where no checkpoint was loaded."""


class StartPoint(msgspec.Struct, kw_only=True):
    """Where the writing of a namespace begins.

    Attributes:
        site: of the call that runs the graph.
        out: the namespace's writer; it knows the newest checkpoint.
        encoder: what it is encoded with.
        records: of the open superstep.
        board: what was loaded; None when nothing is stored.
        at: the checkpoint that was loaded; empty when nothing is stored.
        scope: what the ids of the open superstep's tasks are made of: the thread's id, or that of the thread in which
            the superstep was planned, when it was copied from there.
        step: the superstep of that checkpoint.
        branches: a branch of its own begins here.
        continues: an earlier attempt at the same call has got this far.
        ran_instead: the name of the graph that this earlier attempt ran, if that or its input differs; else empty.
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
        """Note that an earlier attempt at the same call has got this far.

        Args:
            site: as it was then.
        """
        self.continues = True
        if site.identity.is_other(self.site.identity):
            self.ran_instead = site.identity.graph
        self.site = msgspec.structs.replace(self.site, identity=self.site.identity.or_else(site.identity))
