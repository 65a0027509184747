"""Shared by the tests of PostgresSaver: a server, schemas of their own, and servers that may be killed.

The server is the one that `PREGEL_POSTGRES` names (a connection string), else the database `test` on 127.0.0.1:5432,
else one started from the system's binaries for the run. Without any of these, the tests are skipped.
"""

from __future__ import annotations

import atexit
import os
import pwd
import re
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import anyio
import anyio.lowlevel
import psycopg
import psycopg.conninfo
import pytest

from checkpoint_savers import PostgresSaver
from checkpoint_savers.postgres.client import PostgresClient

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
"""For processes that import what the tests import."""

HOW = (
    "no PostgreSQL: install its server (Debian: postgresql), or set PREGEL_POSTGRES to a connection string of a database "
    "in which schemas may be made"
)


@cache
def conninfo() -> str:
    """Return the connection string of a server that runs during the tests, or skip the test."""
    given = os.environ.get("PREGEL_POSTGRES")
    if given is not None:
        return given
    usual = "postgresql://127.0.0.1:5432/test"
    try:
        psycopg.connect(usual, connect_timeout=10).close()
    except psycopg.OperationalError:
        pass
    else:
        return usual
    server = OwnServer()
    server.start()
    atexit.register(server.remove)
    return server.conninfo


@cache
def unsynced() -> str:
    """Return `conninfo()` for connections whose commits do not wait for the disk.

    For tests in which the server keeps running: such a commit is lost only if the server's machine fails, and the tests
    take half of the time. It is what `synchronous="NORMAL"` is for SQLite.
    """
    given = psycopg.conninfo.conninfo_to_dict(conninfo())
    options = f"{given.get('options') or ''} -c synchronous_commit=off".strip()
    return psycopg.conninfo.make_conninfo(conninfo(), options=options)


@contextmanager
def own_database() -> Iterator[str]:
    """Return the connection string of a new database, whose tables are vacuumed at once: transactions of other tests do
    not delay that. Of the usual one, if the role may not make databases."""
    name = f"pregel_test_{uuid.uuid4().hex}"
    try:
        execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
    except psycopg.errors.InsufficientPrivilege:
        yield unsynced()
        return
    try:
        yield psycopg.conninfo.make_conninfo(unsynced(), dbname=name)
    finally:
        execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def new_schema(url: str | None = None) -> Iterator[str]:
    """Return a unique name for a schema, which is dropped at the end."""
    url = conninfo() if url is None else url
    name = f"pregel_test_{uuid.uuid4().hex}"
    try:
        yield name
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@contextmanager
def made_schema(url: str | None = None) -> Iterator[str]:
    """Return a schema with the tables of PostgresSaver."""
    with new_schema(url) as schema:
        execute(PostgresSaver.setup_script(schema=schema), url=unsynced() if url is None else url)
        yield schema


_spare: list[str] = []
"""Schemas of this process with empty tables of PostgresSaver, which no test uses now."""


@contextmanager
def reused_schema() -> Iterator[str]:
    """Return a schema with empty tables of PostgresSaver, which later tests of this process use, too.

    Making and dropping a schema takes twenty times as long as deleting the rows of its tables. For tests that neither change
    the tables nor leave behind another process that may still write to them: those need `made_schema`.
    """
    if _spare:
        schema = _spare.pop()
    else:
        schema = f"pregel_test_{uuid.uuid4().hex}"
        execute(PostgresSaver.setup_script(schema=schema), url=unsynced())
    try:
        yield schema
    finally:
        empty(schema)
        _spare.append(schema)


def drop_reused_schemas() -> None:
    """Drop the schemas of `reused_schema`, at the end of the process."""
    if _spare:
        execute("; ".join(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE' for schema in _spare))
        _spare.clear()


TABLES = ("threads", "heads", "checkpoints", "records", "events", "runs", "run_threads")


def empty(schema: str, *tables: str) -> None:
    """Delete all rows of some of a schema's tables; by default of those of PostgresSaver."""
    # TRUNCATE replaces the files of the tables and their indexes, and waits for the disk: ten times as long.
    execute("; ".join(f'DELETE FROM "{schema}".pregel_{table}' for table in tables or TABLES), url=unsynced())


def execute(sql: str, *parameters: object, url: str | None = None) -> list[tuple[Any, ...]]:
    """Execute a statement outside the saver, in a transaction of its own."""
    with psycopg.connect(conninfo() if url is None else url, autocommit=True) as connection:
        cursor = connection.execute(sql, parameters or None)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def locked(schema: str, thread_id: str) -> Iterator[None]:
    """Hold the lock on a thread's row, as another program would."""
    with psycopg.connect(conninfo()) as connection:
        connection.execute(f'SELECT 1 FROM "{schema}".pregel_threads WHERE thread_id = %s FOR UPDATE', (thread_id,))
        yield


@contextmanager
def patience(client: PostgresClient, seconds: float) -> Iterator[None]:
    """Change how long a saver or store retries an unreachable server, while a test keeps the server away from it.

    Its calls before and after wait as long as they need: a new connection can take a second on a machine under load.
    """
    source = client._source
    before, source.reconnect_timeout = source.reconnect_timeout, seconds
    try:
        yield
    finally:
        source.reconnect_timeout = before


@asynccontextmanager
async def stopped(saver: PostgresSaver) -> AsyncIterator[threading.Event]:
    """Block the saver's event loop until the event is set, which the end of the block does."""
    inside, go = threading.Event(), threading.Event()

    async def stop() -> None:
        inside.set()
        go.wait(60)

    assert saver._open is not None
    async with anyio.create_task_group() as group:
        group.start_soon(saver._open.driver.run, stop)
        while not inside.is_set():
            await anyio.lowlevel.checkpoint()
        try:
            yield go
        finally:
            go.set()


async def turns(number: int = 20) -> None:
    for _ in range(number):
        await anyio.lowlevel.checkpoint()


SYNC = b"S\0\0\0\4"
"""What a client says when its question is complete."""
PROCESS = re.compile(rb"(K\0\0\0\x0c)....", re.DOTALL)
"""The server's message with its process number, up to its end."""

READY = b"Z\0\0\0\5I"
"""What the server says when it is ready for another, outside of a transaction."""

Plan = Literal["lose the question", "lose the answer", "deliver late"]


class _Prepared:
    """The statements that a client has prepared on a connection, from what it sends.

    Args:
        noted: gets their texts.
    """

    def __init__(self, noted: list[str]) -> None:
        self._noted = noted
        self._texts: dict[bytes, bytes] = {}  # by name
        self._rest = b""

    def texts_of(self, data: bytes) -> bytes:
        """Return the texts of the prepared statements that some data executes."""
        data, found = self._rest + data, b""
        while len(data) >= 5 and len(data) > (length := int.from_bytes(data[1:5], "big")):
            kind, body, data = data[:1], data[5 : length + 1], data[length + 1 :]
            if kind == b"P":  # Parse
                name, text, *_ = body.split(b"\0", 2)
                self._texts[name] = text
                if name:
                    self._noted.append(text.decode())
            elif kind == b"B":  # Bind
                _, name, *_ = body.split(b"\0", 2)
                found += self._texts.get(name, b"") + b"\0"
        self._rest = data
        return found


class Proxy:
    """Stands between a saver and the server, counts round trips, and breaks connections on request.

    Attributes:
        turns: the number of queries on all connections. The first queries of a new connection do not count, as a pool
            opens connections in the background, nor does preparing a statement.
        connections: the number of connections so far.
        refuses: True if new connections are refused, and all are broken once a plan has broken one.
        hides_processes: True if clients get another number as that of their server process, as behind a pooler.
        prepared: the texts of the statements that clients have prepared.
    """

    def __init__(self, url: str) -> None:
        self.hides_processes = False
        self.prepared: list[str] = []
        known = psycopg.conninfo.conninfo_to_dict(url)
        self._server = (str(known.get("host", "127.0.0.1")), int(known.get("port") or 5432))
        self._known = {**known, "host": "127.0.0.1", "hostaddr": "127.0.0.1"}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._plans: list[tuple[Plan, bytes]] = []
        self._kept: list[tuple[socket.socket, bytes]] = []
        self._open: list[socket.socket] = []
        self.broke = threading.Event()
        self.refuses = False
        self.turns = 0
        self.connections = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        _close(self._listener)
        self.cut()

    @property
    def url(self) -> str:
        return psycopg.conninfo.make_conninfo(**{**self._known, "port": self._listener.getsockname()[1]})

    def plan(self, plan: Plan, marker: str) -> None:
        """Set what happens to the next connection with a query that contains `marker`."""
        self.broke.clear()
        self._plans.append((plan, marker.encode()))

    def deliver(self) -> None:
        """Send the server the held-back data, and wait until it has processed them."""
        for server, data in self._kept:
            server.sendall(data)
            assert server.recv(65536)
            server.close()
        self._kept.clear()

    def cut(self) -> None:
        """Break all connections. The serving thread closes each one: its selector accepts no closed socket."""
        with self._lock:
            for one in self._open:
                _shut_down(one)
            self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self.refuses:
                    _close(client)
                    _close(server)
                    continue
                self._open += (client, server)
                self.connections += 1
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        """Serve one connection in a thread: queries and answers alternate."""
        ready, asked, plan, kept, prepared = False, False, None, b"", _Prepared(self.prepared)
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ)
            selector.register(server, selectors.EVENT_READ)
            try:
                while True:
                    for key, _ in selector.select():
                        data = key.fileobj.recv(1 << 20)
                        if not data:
                            return
                        if key.fileobj is server:
                            if plan is not None:
                                return  # the response is lost
                            asked = False
                            if self.hides_processes and not ready:
                                data = PROCESS.sub(lambda found: found[1] + bytes(4), data)
                            ready = ready or data.endswith(READY)
                            client.sendall(data)
                            continue
                        self.turns += ready and not asked and not _prepares(data)
                        asked = True
                        plan = plan or self._plan_of(data + (prepared.texts_of(data) if ready else b""))
                        if plan == "lose the question":
                            return
                        if plan == "deliver late":
                            kept += data
                            if kept.endswith(SYNC):
                                self._kept.append((server, kept))
                                return
                        else:
                            server.sendall(data)
            except OSError:
                return
            finally:
                if plan is not None and self.refuses:
                    self.cut()  # a pool may have opened another connection in the background
                _close(client)
                if plan != "deliver late":
                    _close(server)
                if plan is not None:
                    self.broke.set()

    def _plan_of(self, data: bytes) -> Plan | None:
        with self._lock:
            for number, (plan, marker) in enumerate(self._plans):
                if marker in data:
                    del self._plans[number]
                    return plan
        return None


def _prepares(data: bytes) -> bool:
    """Return True if a client asks whether it may prepare statements, or prepares one. It does so once per connection."""
    length = int.from_bytes(data[1:5], "big")
    is_prepare = data[:1] == b"P" and data[5:6] != b"\0" and data[length + 1 :] == SYNC
    return is_prepare or b"pg_backend_pid()" in data


def _shut_down(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _close(one: socket.socket) -> None:
    _shut_down(one)
    one.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _as_user() -> str | None:
    """Return the user to run a server as, since it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("PostgreSQL does not run as root, and there is no user 'postgres' to run it as")
    return "postgres"


class _ServerFolder:
    """A temporary folder, and programs that run in it as a user without root rights."""

    def __init__(self) -> None:
        self.user = _as_user()
        self.path = Path(tempfile.mkdtemp(prefix="pregel-postgres-"))
        if self.user is not None:
            shutil.chown(self.path, self.user)

    def run(self, *command: str) -> None:
        """Run a program to its end. Its output goes to a file, as the servers that it starts continue to run."""
        said = self.path / "said"
        with said.open("w") as output:
            done = subprocess.run(
                command,
                user=self.user,
                cwd=self.path,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=60,
            )
        assert done.returncode == 0, (command, said.read_text())

    def remove(self) -> None:
        shutil.rmtree(self.path)


class OwnServer:
    """A server with its own folder and port. The test is skipped without its binaries."""

    def __init__(self) -> None:
        self._bin = _binaries()
        self._home = _ServerFolder()
        self.port = free_port()
        self._data = str(self._home.path / "data")
        self._run("initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync")

    @property
    def conninfo(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = f"-p {self.port} -k {self._home.path} -c listen_addresses=127.0.0.1 -c max_connections=200"
        self._run("pg_ctl", "-l", str(self._home.path / "log"), "-o", options, "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server; `immediate` is like a kill."""
        self._run("pg_ctl", "-m", mode, "-w", "stop")

    def restart(self) -> None:
        """Kill the server and start it at once."""
        self.stop()
        self.start()

    def remove(self) -> None:
        if (self._home.path / "data" / "postmaster.pid").exists():
            self.stop()
        self._home.remove()

    def _run(self, program: str, *args: str) -> None:
        self._home.run(str(self._bin / program), "-D", self._data, *args)


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """Run a server that tests may stop and start."""
    server = OwnServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


class Pooler:
    """pgbouncer in transaction mode in front of a server, with fewer connections than its clients want.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
        if program is None:
            pytest.skip("no pooler: install pgbouncer (Debian: pgbouncer)")
        self._program = program
        self._home = _ServerFolder()
        self._known = psycopg.conninfo.conninfo_to_dict(url)
        self._port = free_port()
        with psycopg.connect(url) as connection:
            info = connection.info
            self._user, database = info.user, info.dbname
            target = f"host={info.host or '127.0.0.1'} port={info.port} dbname={database} user={info.user}"
            target += f" password={info.password}" if info.password else ""
        self.url = f"postgresql://{self._user}@127.0.0.1:{self._port}/{database}"
        (self._home.path / "users").write_text(f'"{self._user}" ""\n')
        (self._home.path / "ini").write_text(
            f"[databases]\n{database} = {target}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self._port}\n"
            f"unix_socket_dir =\nauth_type = any\nauth_file = {self._home.path}/users\npool_mode = transaction\n"
            f"default_pool_size = 3\nmax_client_conn = 200\nlogfile = {self._home.path}/log\n"
            f"pidfile = {self._home.path}/pid\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [self._program, "-q", "ini"],
            user=self._home.user,
            cwd=self._home.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=10).close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, (self._home.path / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        self.kill()
        self._home.remove()


@contextmanager
def pooler(url: str) -> Iterator[Pooler]:
    """Run a pooler that tests may kill and start."""
    one = Pooler(url)
    try:
        one.start()
        yield one
    finally:
        one.remove()


def _binaries() -> Path:
    """Return the folder of a server's programs, or skip the test."""
    places = [Path(place) for place in os.environ.get("PATH", "").split(os.pathsep) if place]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places += sorted(Path("/usr").glob("pgsql-*/bin"), reverse=True)
    for place in places:
        if (place / "initdb").exists() and (place / "pg_ctl").exists():
            return place
    pytest.skip(HOW)
