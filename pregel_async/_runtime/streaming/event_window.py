"""The stored events of a thread from a reader's checkpoint on, each row read once, however often the reader looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.records import CheckpointId, EventKey, EventRow
from checkpoint_savers.saver_port import PAGE

from .event_rows import TimedEvents, read_row

_AFTER_ALL: Final[EventKey] = (CheckpointId("~"), 0, 0)


class ReadRow(NamedTuple):
    """A row of events, and its decoded content."""

    row: EventRow
    found: TimedEvents


class EventWindow:
    """The rows of events and the branch of a thread, from a checkpoint on.

    A window is advanced to the checkpoint of its reader's cursor. Rows before that are dropped, and only rows that it
    does not have yet are read, one page at a time.

    Args:
        saver: where the thread is stored.
        thread_id: the thread.

    Attributes:
        saver, thread_id: see above.
        is_complete: it has all rows that are stored; otherwise `rows` returns those of complete checkpoints.
        path: the checkpoints of the newest checkpoint's branch with their supersteps, the newest one first.
        forked: those checkpoints of the path at which it forks from another branch.
        head_before_read: the newest checkpoint before the rows were last read; "" for none. The rows of all supersteps
            up to it were read. Rows of later checkpoints of the path may be missing.
    """

    def __init__(self, saver: BaseCheckpointSaver, thread_id: str) -> None:
        self.saver = saver
        self.thread_id = thread_id
        self.is_complete = True
        self.path: dict[str, int] = {}
        self.forked: set[str] = set()
        self.head_before_read = ""
        self._rows: list[ReadRow] = []
        self._since = "~"  # the first checkpoint of the window: at first one after all others
        self._head = ""
        self._next: EventKey = (CheckpointId(""), 0, 0)  # where the next page begins
        # The newest attempt, the smallest position of it that is in no row, and greater positions that are in rows.
        self._attempt: tuple[str, int] = ("", 0)
        self._low = 1
        self._covered: set[int] = set()
        # Rows of the newest attempt between these keys may have been stored since their pages were read.
        self._doubtful: tuple[EventKey, EventKey] | None = None

    @property
    def is_current(self) -> bool:
        """False if a checkpoint was stored while the rows were read. Read again then: no later row may announce it."""
        return self.head_before_read == self._head

    async def advance(self, since: str, *, over: bool = False) -> bool:
        """Read rows that were stored since, and the branch if there are some: at most a page, or one checkpoint's rows.

        Args:
            since: the checkpoint of the reader's cursor.
            over: read the branch in any case, as its run may have ended without events.

        Returns:
            False if nothing was stored since.

        Raises:
            CorruptCheckpointError: a row is damaged.
            StorageError: storage has failed.
        """
        newest = self._rows[-1].row.checkpoint_id if self._rows else self._since
        is_new = not self._since <= since <= newest
        was_current = self.is_current
        if is_new:
            self._restart(since)
            await self._load_path(since)
        elif since > self._since:
            self._since = since
            self._rows = [each for each in self._rows if each.row.checkpoint_id >= since]
        has_new = await self._read_rows() or is_new or not was_current
        # The path is loaded after the rows: otherwise the rows of a checkpoint stored in between would be skipped.
        while (has_new or over) and await self._load_path(since):
            # The thread continues from an older checkpoint. Its first events have smaller keys than those that were
            # read before.
            self._restart(since)
            await self._read_rows()
        return has_new

    def rows(self) -> Sequence[ReadRow]:
        """Return the rows of all checkpoints whose rows were all read, in the order of their keys."""
        if self.is_complete:
            return self._rows
        last = self._rows[-1].row.checkpoint_id
        return [each for each in self._rows if each.row.checkpoint_id < last]

    def drop_read(self, cursor_checkpoint: str) -> None:
        """Drop the rows that `rows` returns, except those of the cursor's checkpoint."""
        last = self._rows[-1].row.checkpoint_id
        self._rows = [each for each in self._rows if each.row.checkpoint_id in (cursor_checkpoint, last)]

    def _restart(self, since: str) -> None:
        self._since, self._rows, self.is_complete = since, [], True
        self._next, self._attempt, self._doubtful = (CheckpointId(since), 0, 0), ("", 0), None

    async def _read_rows(self) -> bool:
        """Read the next page, and more pages until a checkpoint is complete. Return True if there are new rows."""
        self.head_before_read = self._head
        has_new = await self._read_page()
        while not self.is_complete and not self.rows():
            await self._read_page()
        return has_new

    async def _read_page(self) -> bool:
        """Read the next page. Return True if there are new rows."""
        page, has_new = await self._add_page(self._next)
        self.is_complete = len(page) < PAGE
        if self._doubtful is not None:
            since, until = self._doubtful
            if self.is_complete or (page[-1].checkpoint_id, page[-1].epoch) > since[:2]:
                has_new = await self._read_again(since, until) or has_new
                self._doubtful = None
        if self.is_complete:
            # Units of one attempt are recorded in any order, so a row may be stored after another one with a greater
            # key. But its first position is in no other row: no row is missing below the first such position. Earlier
            # attempts are over.
            checkpoint_id, epoch = self._attempt
            if self._rows:
                self._next = (CheckpointId(checkpoint_id), epoch, self._low)
        else:
            last = page[-1]
            # By key and not by offset: rows that are stored or pruned meanwhile do not shift the pages.
            self._next = (last.checkpoint_id, last.epoch, last.position + 1)
            if self._low < last.position:
                # A row with a smaller key may be stored before the next page is read, with rows of that page.
                first = (last.checkpoint_id, last.epoch, self._low)
                self._doubtful = (first if self._doubtful is None else self._doubtful[0], last.key)
        return has_new

    async def _read_again(self, since: EventKey, until: EventKey) -> bool:
        """Read rows between two keys that were stored since their pages were read. Return True if there are some."""
        has_new, begin, before = False, since, since
        while begin <= until:
            page, is_new = await self._add_page(begin, until)
            has_new = has_new or is_new
            if is_new and begin > since:  # those of the pages before may have been stored with these
                begin, until = since, before
            elif len(page) < PAGE:
                break
            else:
                before = page[-1].key
                begin = (before[0], before[1], before[2] + 1)
        return has_new

    async def _add_page(self, since: EventKey, until: EventKey = _AFTER_ALL) -> tuple[Sequence[EventRow], bool]:
        """Read a page, and add its rows up to a key. Return the page, and True if there are new rows."""
        page = await self.saver.events(self.thread_id, since=since, limit=PAGE)
        known = {each.row.key for each in self._rows if each.row.key >= since}
        new = [ReadRow(row, read_row(row, self.thread_id)) for row in page if row.key <= until and row.key not in known]
        if new:
            in_order = not self._rows or self._rows[-1].row.key < new[0].row.key
            self._rows += new
            if not in_order:
                self._rows.sort(key=lambda each: each.row.key)
            for each in new:
                self._cover(each)
        return page, bool(new)

    def _cover(self, each: ReadRow) -> None:
        """Note the positions that a row has."""
        attempt = each.row.checkpoint_id, each.row.epoch
        if attempt < self._attempt:
            return
        if attempt > self._attempt:
            self._attempt, self._low, self._covered = attempt, 1, set()
        self._covered.update([each.row.position + event.offset for event in each.found.events])
        self._covered.discard(0)
        while self._low in self._covered:
            self._covered.discard(self._low)
            self._low += 1

    async def _load_path(self, since: str) -> bool:
        """Read the checkpoints that were stored since. Return True if the thread has changed to another branch."""
        head: str = (await self.saver.heads(self.thread_id, "")).get("", "")
        before, is_known = self._head, since in self.path
        if head == before and is_known:
            return False
        self._head = head
        if is_known:
            path, forked = await self._path(head, before)
            if before in path:
                path.update({at: step for at, step in self.path.items() if at >= since})
                self.path, self.forked = path, {at for at in self.forked | forked if at >= since}
                return False
        self.path, self.forked = await self._path(head, since)
        if since == "":
            self.path[""] = -2
        return is_known

    async def _path(self, head: str, since: str) -> tuple[dict[str, int], set[str]]:
        """Return the checkpoints from `head` back to `since` with their supersteps, and those that the path forks from.

        If `since` is not on the branch of `head`, the path ends before it.
        """
        parents: dict[str, str] = {}  # "" for a checkpoint that has none
        steps: dict[str, int] = {}
        forks: set[str] = set()
        before: CheckpointId | None = None
        # Most looks find the checkpoints of a few supersteps.
        limit = 4 if since else PAGE
        while head:
            page = await self.saver.scan(self.thread_id, "", before=before, limit=limit)
            for header in page:
                parents[header.checkpoint_id] = header.parent_id or ""
                steps[header.checkpoint_id] = header.step
                if header.metadata.get("source") == "fork":
                    forks.add(header.checkpoint_id)
            if len(page) < limit or page[-1].checkpoint_id <= since:
                break
            before, limit = page[-1].checkpoint_id, PAGE
        path: dict[str, int] = {}
        forked: set[str] = set()
        at = head
        while at in parents and at >= since:
            path[at] = steps[at]
            parent = parents[at]
            if at in forks and parent:
                forked.add(parent)
            at = parent
        return path, forked
