"""A PostgreSQL server of the tests' own, which they may stop and start."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from punica_serve.bench.free_ports import free_port
from waits import DEADLINE_S

#: The server refuses to run as root; whoever may change users takes this one.
_USER = "postgres"


class PostgresServer:
    """A cluster of databases in a folder, and the process that serves it."""

    def __init__(self, folder: Path, user: str | None) -> None:
        self._folder = folder
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._port = free_port()

    def url(self, database: str) -> str:
        return f"postgresql://punica@127.0.0.1:{self._port}/{database}"

    def make(self) -> None:
        self._run("initdb", "--pgdata", "data", "--username", "punica", "--auth", "trust", "--no-sync")

    def start(self) -> None:
        options = ["-k", "", "-p", str(self._port), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_program("postgres"), "-D", "data", *options],
                cwd=self._folder,
                user=self._user,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + DEADLINE_S
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, "PostgreSQL does not answer"
            time.sleep(0.05)

    def stop(self) -> None:
        """At once, connections or not."""
        if self._process:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(DEADLINE_S)
            self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Inside, connections are there and nobody answers."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)  # first: then no child begins, and none that ends is gone
        backends = self._backends()
        _send(signal.SIGSTOP, backends)
        try:
            yield
        finally:
            _send(signal.SIGCONT, [*backends, self._process.pid])

    def _backends(self) -> list[int]:
        assert self._process
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self._process.pid)], capture_output=True, check=True)
        return [int(pid) for pid in listed.stdout.split()]

    def make_database(self, name: str) -> str:
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self._port), "-U", "punica", name)
        return self.url(name)

    def _answers(self) -> bool:
        command = ["pg_isready", "-h", "127.0.0.1", "-p", str(self._port), "-q"]
        return subprocess.run([_program(command[0]), *command[1:]], check=False, timeout=DEADLINE_S).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [_program(program), *arguments],
            cwd=self._folder,
            user=self._user,
            check=True,
            timeout=DEADLINE_S,
            stdout=subprocess.DEVNULL,
        )


def _send(signum: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signum)


@contextmanager
def postgres_server() -> Iterator[PostgresServer | None]:
    """None where the programs are not installed, or may not run."""
    is_root = os.geteuid() == 0
    if not all(_find(program) for program in ("initdb", "postgres", "createdb", "pg_isready")):
        yield None
        return
    # Not under pytest's folders: nobody but their owner may look into those.
    folder = Path(tempfile.mkdtemp(prefix="punica-postgres-"))
    server = PostgresServer(folder, _USER if is_root else None)
    try:
        if is_root:
            shutil.chown(folder, _USER)
        server.make()
        server.start()
    except (LookupError, subprocess.CalledProcessError):
        shutil.rmtree(folder)
        yield None
        return
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


def _program(name: str) -> str:
    found = _find(name)
    assert found, name
    return found


def _find(name: str) -> str | None:
    """Debian keeps them off the PATH, by version."""
    newest_first = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name) or next(
        (found for folder in newest_first if (found := shutil.which(name, path=folder))), None
    )
