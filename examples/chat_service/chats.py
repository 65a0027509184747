"""Which user owns which conversation: a table in the saver's SQLite file."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aiosqlite

TABLE = "CREATE TABLE IF NOT EXISTS chats (number INTEGER PRIMARY KEY, id TEXT UNIQUE, user TEXT, title TEXT) STRICT"


class Chats:
    """The conversations of each user. `open_chats` makes it."""

    def __init__(self, db: aiosqlite.Connection) -> None:
        self._db = db

    async def add(self, user: str, title: str) -> str:
        """Store a new conversation.

        Args:
            user: the user's name.
            title: the conversation's title.

        Returns:
            The conversation's id, which is its thread's id too.
        """
        id = str(uuid4())
        await self._db.execute("INSERT INTO chats (id, user, title) VALUES (?, ?, ?)", (id, user, title))
        return id

    async def of(self, user: str) -> list[dict[str, Any]]:
        """Return a user's conversations, newest first.

        Args:
            user: the user's name.

        Returns:
            A dict with `id` and `title` for each conversation.
        """
        rows = await self._db.execute_fetchall(
            "SELECT id, title FROM chats WHERE user = ? ORDER BY number DESC", (user,)
        )
        return [{"id": id, "title": title} for id, title in rows]

    async def belongs(self, id: str, user: str) -> bool:
        """Return True if a conversation belongs to a user.

        Args:
            id: the conversation's id.
            user: the user's name.

        Returns:
            True if the user has a conversation with that id.
        """
        rows = await self._db.execute_fetchall("SELECT 1 FROM chats WHERE id = ? AND user = ?", (id, user))
        return bool(list(rows))


@asynccontextmanager
async def open_chats(path: str) -> AsyncGenerator[Chats]:
    """Open the table of conversations.

    Args:
        path: the SQLite file.

    Yields:
        The conversations. The connection is closed when the context ends.
    """
    async with aiosqlite.connect(path, isolation_level=None) as db:  # each statement is a transaction
        await db.execute(TABLE)
        yield Chats(db)
