"""Whose conversation is whose: a table beside those of the saver, in the same file."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aiosqlite

TABLE = "CREATE TABLE IF NOT EXISTS chats (number INTEGER PRIMARY KEY, id TEXT UNIQUE, user TEXT, title TEXT) STRICT"


class Chats:
    """The conversations, by user. Made by `open_chats`."""

    def __init__(self, db: aiosqlite.Connection) -> None:
        self._db = db

    async def add(self, user: str, title: str) -> str:
        """A new conversation. Its id is its thread's."""
        id = str(uuid4())
        await self._db.execute("INSERT INTO chats (id, user, title) VALUES (?, ?, ?)", (id, user, title))
        return id

    async def of(self, user: str) -> list[dict[str, Any]]:
        """Newest first."""
        rows = await self._db.execute_fetchall(
            "SELECT id, title FROM chats WHERE user = ? ORDER BY number DESC", (user,)
        )
        return [{"id": id, "title": title} for id, title in rows]

    async def belongs(self, id: str, user: str) -> bool:
        rows = await self._db.execute_fetchall("SELECT 1 FROM chats WHERE id = ? AND user = ?", (id, user))
        return bool(list(rows))


@asynccontextmanager
async def open_chats(path: str) -> AsyncGenerator[Chats]:
    async with aiosqlite.connect(path, isolation_level=None) as db:  # each statement is a transaction
        await db.execute(TABLE)
        yield Chats(db)
