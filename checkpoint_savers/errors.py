"""Every error that a saver raises on purpose, and the root of all errors of this distribution.

`PregelError` stands here, in the lowest package, so that one `except PregelError` catches what the
runtime and the savers raise alike.
"""

from __future__ import annotations

import contextlib


def annotate(error: BaseException, note: str, *, context: BaseException | None = None) -> None:
    """Add a note to an error that is being raised, unless its class refuses attributes.

    The class may be a user's: a frozen dataclass refuses every attribute, and an `add_note` of its own may raise. That
    second error is dropped: it would reach the caller in the place of the first, which matters more than the note.
    A note that the error already has is not added again: one object may be raised several times, or in several graphs.

    Args:
        context: the error that led to this one, which becomes its `__context__` if it has none.
    """
    with contextlib.suppress(Exception):
        if context is not None and context is not error and error.__context__ is None:
            error.__context__ = context
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


class PregelError(Exception):
    """The root of every deliberate error of `pregel_async` and `checkpoint_savers`. It keeps its facts when pickled.

    Attributes:
        retryable: whether the same may go well when it is tried again; a property of the class.
    """

    retryable: bool = False

    def __reduce__(self) -> tuple[object, ...]:
        # Not by calling the class, whose constructor takes the facts and not the sentence.
        return (_remade, (type(self), self.args, self.__dict__))


def _remade(kind: type[PregelError], args: tuple[object, ...], facts: dict[str, object]) -> PregelError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class CheckpointError(PregelError):
    """The root of what concerns stored threads and items."""


class SyncCallError(PregelError, RuntimeError):
    """A sync verb was called in a thread whose event loop must not be blocked; nothing has run.

    Attributes:
        called: what was called.
        instead: what to write there.
        library: "asyncio" or "trio".
        node: the node whose code has called it, on the event loop of its own run; None for other code.
    """

    def __init__(
        self, called: str, instead: str, library: str, *, node: str | None = None, reason: str | None = None
    ) -> None:
        self.called = called
        self.instead = instead
        self.library = library
        self.node = node
        reason = reason or f"in a thread in which an event loop ({library}) is running, and would block it"
        super().__init__(
            f"{called} was called {reason}: nothing has run. Use '{instead}' there, or call it in a worker thread."
        )


class ThreadBusyError(CheckpointError):
    """Another run owns the thread, or took it over from this one.

    Attributes:
        thread_id: the thread that was asked for.
        holder: who holds the lease, in words (host, process, run), or None when it is unknown.
        expires_at: when the holder's lease lapses, in unix seconds; None when it is unknown.
        lost: True when this run had the lease and lost it: nothing of its last commit was stored.
    """

    def __init__(
        self, thread_id: str, *, holder: str | None = None, expires_at: float | None = None, lost: bool = False
    ) -> None:
        self.thread_id = thread_id
        self.holder = holder
        self.expires_at = expires_at
        self.lost = lost
        by = f" by {holder}" if holder else ""
        if lost:
            text = (
                f"thread {thread_id!r} was taken over{by}: this run's commit was refused and changed nothing. "
                "Read the thread's state and start again from there."
            )
        else:
            text = (
                f"thread {thread_id!r} is in use{by}: nothing was run or stored. "
                "Wait for that run to end; runs and updates of state do so themselves with on_conflict='wait'."
            )
        super().__init__(text)


class ThreadNotFoundError(CheckpointError, LookupError):
    """Nothing is stored of the thread.

    Attributes:
        thread_id: what was asked for.
    """

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        super().__init__(f"nothing is stored of a thread {thread_id!r}. alist_threads() lists the stored ones.")


class ThreadExistsError(CheckpointError):
    """A thread cannot be made of another, or of a file: one of its name holds something. Nothing was changed.

    Attributes:
        thread_id: the thread that was to be made.
    """

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        super().__init__(
            f"thread {thread_id!r} holds something already, and nothing was changed: "
            "choose another id, or erase it first."
        )


class CheckpointNotFoundError(PregelError, LookupError):
    """The config names a checkpoint that the thread does not have.

    Attributes:
        thread_id, checkpoint_id: what was asked for.
    """

    def __init__(self, thread_id: str, checkpoint_id: str) -> None:
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id
        super().__init__(
            f"thread {thread_id!r} has no checkpoint {checkpoint_id!r}. aget_state_history() lists those that it has."
        )


class CorruptCheckpointError(CheckpointError, ValueError):
    """Stored bytes are damaged, truncated, or were never written by a saver.

    Attributes:
        where: what was being read (a thread, a checkpoint, a channel, a file).
        reason: what is wrong with it.
        advice: what to do.
    """

    def __init__(self, where: str, reason: str, advice: str = "Restore it from a backup") -> None:
        self.where = where
        self.reason = reason
        self.advice = advice
        super().__init__(f"{where}: {reason}. {advice}; nothing was changed.")


class UnknownTypeError(CorruptCheckpointError):
    """A stored value names a type that the reading codec does not know (or its bytes are damaged).

    Attributes:
        tag: the name under which the type was stored.
    """

    def __init__(self, where: str, tag: str) -> None:
        self.tag = tag
        CheckpointError.__init__(
            self,
            f"{where}: a value of type {tag!r} is stored there, and no type is registered under that tag. "
            f"Register the class: Codec().with_types(TheClass, tag={tag!r}).",
        )
        self.where = where
        self.reason = f"unknown type tag {tag!r}"
        self.advice = "Register it"


class StoredTypeChangedError(CheckpointError):
    """A stored object is whole, and its class as it is now does not take it. Nothing is damaged; nothing was changed.

    Not a `CorruptCheckpointError`: no backup helps.

    Attributes:
        where: what was being read (a channel, an item).
        tag: the name under which the type is stored.
        type_name: the class that is registered under it.
        field: the field or enum member that does not fit; None if the class's own code has refused the object.
        reason: what does not fit.
        advice: what to do.
    """

    def __init__(self, where: str, tag: str, type_name: str, field: str | None, reason: str, advice: str) -> None:
        self.where = where
        self.tag = tag
        self.type_name = type_name
        self.field = field
        self.reason = reason
        self.advice = advice
        super().__init__(
            f"{where}: a stored object of type {tag!r} {reason}: the class has changed since. "
            f"Nothing is damaged: {advice}"
        )


class UnsupportedFormatError(CheckpointError):
    """The stored format is newer than this version of the package can read. It was neither read nor changed.

    Attributes:
        where: what was being read.
        found: the format number found there.
        supported: the newest format number that this version reads.
    """

    def __init__(self, where: str, found: int, supported: int) -> None:
        self.where = where
        self.found = found
        self.supported = supported
        super().__init__(
            f"{where}: stored in format {found}, and this version reads up to format {supported}. Upgrade pregel-async."
        )


class UnstorableValueError(CheckpointError, TypeError):
    """A value cannot be stored; it was refused when it was written.

    Attributes:
        channel: the channel it was written to.
        path: where inside the value, as Python would write it (`['user'][0].born`); empty for the value itself.
        reason: why.
    """

    def __init__(self, channel: str, path: str, reason: str) -> None:
        self.channel = channel
        self.path = path
        self.reason = reason
        super().__init__(f"channel {channel!r}, at value{path}: {reason}")


class UnstorableItemError(UnstorableValueError):
    """An item's value cannot be stored; it was refused when it was put, and nothing was changed.

    Attributes:
        namespace, key: the item's.
    """

    def __init__(self, namespace: tuple[str, ...], key: str, path: str, reason: str) -> None:
        self.namespace = namespace
        self.key = key
        self.channel = f"item {key!r} of namespace {namespace!r}"
        self.path = path
        self.reason = reason
        CheckpointError.__init__(self, f"{self.channel}, at value{path}: {reason}")


class InvalidNamespaceError(CheckpointError, ValueError):
    """Something is no namespace of items, or of a store's patterns; nothing was changed.

    Attributes:
        namespace: what was given.
        reason: what is wrong with it.
    """

    def __init__(self, namespace: object, reason: str) -> None:
        self.namespace = namespace
        self.reason = reason
        super().__init__(f"{namespace!r} is no namespace: {reason}")


class InvalidKeyError(CheckpointError, ValueError):
    """A text is no key of an item; nothing was changed.

    Attributes:
        key: what was given.
        reason: what is wrong with it.
    """

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        shown = repr(key) if len(key) <= 80 else f"{key[:80]!r}..."
        super().__init__(f"{shown} is no key of an item: {reason}")


class VectorSearchError(CheckpointError, NotImplementedError):
    """A store was asked to search by meaning, or to prepare for it. It finds items by namespace and filter only.

    Attributes:
        argument: what was passed.
    """

    def __init__(self, argument: str) -> None:
        self.argument = argument
        super().__init__(
            f"{argument} was passed, and stores here have no vector search: they find items by namespace and filter. "
            "Nothing was done. Leave it out, and keep embeddings in an index of your own."
        )


class TypeRegistrationError(CheckpointError, ValueError):
    """A type cannot be registered in this way. The codec is as it was.

    Attributes:
        type_name: the type, or types.
        reason: why, and what to do.
    """

    def __init__(self, type_name: str, reason: str) -> None:
        self.type_name = type_name
        self.reason = reason
        super().__init__(f"cannot register {type_name}: {reason}")


class StorageError(CheckpointError):
    """The database refused or failed; its own exception is the cause. The transaction was rolled back whole."""


class StorageReadOnlyError(StorageError):
    """The database cannot be written: it was opened read-only, or its file or folder is."""


class StorageFullError(StorageError):
    """The database or its disk is full."""


class StorageLockedError(StorageError):
    """Another process holds the database's lock for longer than the busy timeout."""

    retryable = True


class StorageReplacedError(StorageError):
    """The database's file was removed or replaced while it was open. Nothing was stored, and nothing will be: what is
    written to the open file would be lost with it.

    Attributes:
        path: of the database, as it was given.
        missing: the path that leads elsewhere now: the file's, or that of its write-ahead log.
    """

    def __init__(self, path: str, missing: str | None = None) -> None:
        self.path = path
        self.missing = path if missing is None else missing
        super().__init__(
            f"{path}: {self.missing!r} was removed or replaced while the database was open. Nothing was stored. "
            "What is stored can still be read, and exported with aexport_thread, until this process closes it. Then "
            "open the database again; a run begins again from what is stored there."
        )


class ErasureIncompleteError(StorageError):
    """A thread is deleted, and bytes of it may still be in the database's files.

    Attributes:
        thread_id: the thread.
        reason: what was in the way.
    """

    def __init__(self, thread_id: str, reason: str) -> None:
        self.thread_id = thread_id
        self.reason = reason
        super().__init__(
            f"thread {thread_id!r} is deleted, but bytes of it may still be in the database's files: {reason}. "
            "Erase it again, which finishes this."
        )


class SaverClosedError(StorageError):
    """The saver is not open: use it inside `async with`."""
