"""All errors that savers raise deliberately, and the root of all errors of this distribution.

`PregelError` is defined here, in the lowest package, so that one `except PregelError` catches the errors of the runtime
and of the savers.
"""

from __future__ import annotations

import contextlib
from typing import ClassVar, Self


def annotate(error: BaseException, note: str, *, context: BaseException | None = None) -> None:
    """Add a note to an error that is being raised, unless its class refuses attributes.

    A note that the error already has is not added again: one object may be raised several times, or in several graphs.

    Args:
        error: the error.
        note: the note.
        context: the error that led to this one, which becomes its `__context__` if it has none.
    """
    # The class may be a user's: a frozen dataclass refuses every attribute, and an `add_note` of its own may raise.
    # That second error would reach the caller instead of the first, which matters more than the note.
    with contextlib.suppress(Exception):
        if context is not None and context is not error and error.__context__ is None:
            error.__context__ = context
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


class PregelError(Exception):
    """The root of all deliberate errors of `pregel_async` and `checkpoint_savers`. Its attributes survive pickling.

    Attributes:
        retryable: True if the same operation may succeed when it is repeated; a property of the class.
    """

    retryable: bool = False

    def _repr_html_(self) -> str:
        """Return the error for a notebook: its message, attributes, notes and cause."""
        from .notebook import details_table

        known = [(name, value) for name, value in self.__dict__.items() if name != "__notes__"]
        notes = [("note", note) for note in getattr(self, "__notes__", ())]
        return details_table(f"{type(self).__name__}: {self}", [*known, *notes, ("cause", self.__cause__)])

    def __reduce__(self) -> tuple[object, ...]:
        # Exception.__reduce__ would call the class with the message, but constructors here take the attributes.
        return (_remade, (type(self), self.args, self.__dict__))


def _remade(kind: type[PregelError], args: tuple[object, ...], facts: dict[str, object]) -> PregelError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class CheckpointError(PregelError):
    """The root of errors about stored threads and items."""


class SyncCallError(PregelError, RuntimeError):
    """A sync method was called in a thread whose event loop must not be blocked; nothing has run.

    Attributes:
        called: the method that was called.
        instead: the code to write instead.
        library: "asyncio" or "trio".
        node: the node whose code called it, on the event loop of its own run; None for other code.
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
    """Another run holds the thread, or has taken it over from this one.

    Attributes:
        thread_id: the thread.
        holder: a description of the lease's owner (host, process, run); None if unknown.
        expires_at: when the owner's lease expires, in unix seconds; None if unknown.
        lost: True if this run had the lease and lost it: nothing of its last commit was stored.
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


class RunNotFoundError(CheckpointError, LookupError):
    """There is no such run.

    Attributes:
        run_id: the run.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"there is no run {run_id!r}: it was never accepted here, or has been deleted or rolled back")


class RunOverError(CheckpointError):
    """A run has ended, so that it cannot be cancelled.

    Attributes:
        run_id: the run.
        status: how it ended.
    """

    def __init__(self, run_id: str, status: str) -> None:
        self.run_id = run_id
        self.status = status
        super().__init__(f"run {run_id!r} has ended with status {status!r}, and cannot be cancelled")


class IdempotencyConflictError(CheckpointError):
    """An idempotency key was used for a different request; nothing was stored.

    Attributes:
        key: the idempotency key.
        run_id: the run of the first request.
    """

    def __init__(self, key: str, run_id: str) -> None:
        self.key = key
        self.run_id = run_id
        super().__init__(
            f"idempotency key {key!r} belongs to run {run_id!r}, which was asked for with other arguments. "
            "Use a new key for a new request"
        )


class ThreadNotFoundError(CheckpointError, LookupError):
    """Nothing is stored of the thread.

    Attributes:
        thread_id: the thread.
    """

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        super().__init__(f"nothing is stored of a thread {thread_id!r}. alist_threads() lists the stored ones.")


class ThreadExistsError(CheckpointError):
    """A thread cannot be created as a copy or from a file: the thread holds something. Nothing was changed.

    Attributes:
        thread_id: the thread that was to be created.
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
        thread_id, checkpoint_id: the thread and the checkpoint.
    """

    def __init__(self, thread_id: str, checkpoint_id: str) -> None:
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id
        super().__init__(
            f"thread {thread_id!r} has no checkpoint {checkpoint_id!r}. aget_state_history() lists those that it has."
        )


class CorruptCheckpointError(CheckpointError, ValueError):
    """Stored bytes are damaged or truncated, or were not written by a saver.

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


def _as_arguments(tag: str) -> str:
    """Return the arguments that register a class under a stored name."""
    name, _, version = tag.rpartition("@")
    return f"tag={name!r}, version={version}, upcast=..." if name and version.isdecimal() else f"tag={tag!r}"


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
            f"Register the class: Codec().with_types(TheClass, {_as_arguments(tag)}).",
        )
        self.where = where
        self.reason = f"unknown type tag {tag!r}"
        self.advice = "Register it"


class StoredTypeChangedError(CheckpointError):
    """A stored object is intact, but does not fit its class as it is now. Nothing was changed.

    It is no `CorruptCheckpointError`, since no backup would help.

    Attributes:
        where: what was being read (a channel, an item).
        tag: the name under which the type is stored.
        type_name: the class that is registered under it.
        field: the field or enum member that does not fit; None if the class's own code has refused the object.
        reason: what does not fit.
        advice: what to do.
        version: the version of the class that stored the object.
    """

    def __init__(
        self, where: str, tag: str, type_name: str, field: str | None, reason: str, advice: str, version: int = 1
    ) -> None:
        self.where = where
        self.tag = tag
        self.type_name = type_name
        self.field = field
        self.reason = reason
        self.advice = advice
        self.version = version
        super().__init__(
            f"{where}: a stored object of type {tag!r} (version {version}) {reason}: {self._what_changed}. "
            f"Nothing is damaged: {advice}"
        )

    _what_changed: ClassVar[str] = "the class has changed since"

    def located(self, where: str) -> Self:
        """Return the same error with another place, which is then the beginning of its message.

        Args:
            where: what was being read.
        """
        error = type(self).__new__(type(self), where + str(self).removeprefix(self.where))
        error.__dict__.update(self.__dict__, where=where)
        return error


class UpcastError(StoredTypeChangedError):
    """An upcaster raised, or did not return fields; what it raised is the cause. Nothing was changed.

    It is a `StoredTypeChangedError`, since the stored object is intact, and only changed code can read it. It has a
    class of its own, since the mistake is in the upcaster and not in the class.

    Attributes:
        upcast: the version whose objects the upcaster takes: its key in `upcast=`.
    """

    def __init__(
        self, where: str, tag: str, type_name: str, version: int, upcast: int, cause: BaseException | None
    ) -> None:
        self.upcast = upcast
        reason = f"was not upcast, since upcast[{upcast}] of {type_name} failed ({type(cause).__name__}: {cause})"
        super().__init__(where, tag, type_name, None, reason, "correct the upcaster.", version)

    _what_changed = "an upcaster has to accept all that its version stored"


class TypeVersionError(StoredTypeChangedError):
    """Code with a later version of a class stored the object. Nothing was changed.

    Attributes:
        newest: the version that the class has here.
    """

    def __init__(self, where: str, tag: str, type_name: str, version: int, newest: int) -> None:
        self.newest = newest
        reason = f"is newer than this code, in which {type_name} has version {newest}"
        super().__init__(where, tag, type_name, None, reason, "deploy the newer code.", version)

    _what_changed = "it cannot know what the fields of the later version mean"


class UnsupportedFormatError(CheckpointError):
    """The stored format is newer than this version of the package supports. Nothing was read or changed.

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
        channel: the channel to which it was written.
        path: the position inside the value, in Python notation (`['user'][0].born`); empty for the value itself.
        reason: why it cannot be stored.
    """

    def __init__(self, channel: str, path: str, reason: str) -> None:
        self.channel = channel
        self.path = path
        self.reason = reason
        super().__init__(f"channel {channel!r}, at value{path}: {reason}")


class UnstorableItemError(UnstorableValueError):
    """An item's value cannot be stored; it was refused when it was put, and nothing was changed.

    Attributes:
        namespace, key: those of the item.
    """

    def __init__(self, namespace: tuple[str, ...], key: str, path: str, reason: str) -> None:
        self.namespace = namespace
        self.key = key
        self.channel = f"item {key!r} of namespace {namespace!r}"
        self.path = path
        self.reason = reason
        CheckpointError.__init__(self, f"{self.channel}, at value{path}: {reason}")


class InvalidNamespaceError(CheckpointError, ValueError):
    """A value is not a valid namespace of items, or pattern of one; nothing was changed.

    Attributes:
        namespace: the value.
        reason: what is wrong with it.
    """

    def __init__(self, namespace: object, reason: str) -> None:
        self.namespace = namespace
        self.reason = reason
        super().__init__(f"{namespace!r} is no namespace: {reason}")


class InvalidKeyError(CheckpointError, ValueError):
    """A text is not a valid key of an item; nothing was changed.

    Attributes:
        key: the text.
        reason: what is wrong with it.
    """

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        shown = repr(key) if len(key) <= 80 else f"{key[:80]!r}..."
        super().__init__(f"{shown} is no key of an item: {reason}")


class VectorSearchError(CheckpointError, NotImplementedError):
    """A vector search, or an index for one, was requested. Stores find items by namespace and filter only.

    Attributes:
        argument: the argument that requested it.
    """

    def __init__(self, argument: str) -> None:
        self.argument = argument
        super().__init__(
            f"{argument} was passed, and stores here have no vector search: they find items by namespace and filter. "
            "Nothing was done. Leave it out, and keep embeddings in an index of your own."
        )


class TypeRegistrationError(CheckpointError, ValueError):
    """A type cannot be registered in this way. The codec is unchanged.

    Attributes:
        type_name: the type, or types.
        reason: why, and what to do.
    """

    def __init__(self, type_name: str, reason: str) -> None:
        self.type_name = type_name
        self.reason = reason
        super().__init__(f"cannot register {type_name}: {reason}")


class StorageError(CheckpointError):
    """The database refused or failed; the driver's exception is the cause. The transaction was rolled back."""


class StorageReadOnlyError(StorageError):
    """The database cannot be written: it was opened read-only, or its file or folder is read-only."""


class StorageFullError(StorageError):
    """The database or its disk is full."""


class StorageLockedError(StorageError):
    """Another process has held the database's lock for longer than the busy timeout."""

    retryable = True


class StorageReplacedError(StorageError):
    """The database's file was removed or replaced while it was open. Nothing was stored.

    Later writes are refused, too: they would be lost with the open file.

    Attributes:
        path: the database's path, as it was given.
        missing: the path that now leads elsewhere: the file's, or that of its write-ahead log.
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
    """A thread is deleted, but bytes of it may still be in the database's files.

    Attributes:
        thread_id: the thread.
        reason: what prevented the erasure.
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
