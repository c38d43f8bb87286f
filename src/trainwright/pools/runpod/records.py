"""What the pool must never forget: pods, attempts, results and spend, in one SQLite file (WAL) beside the run's ledger.

A pod's row is written before the pod is asked for and closed after its deletion is confirmed; a lease is written before
it is granted. So at any moment, and after any crash, the rows say what may be costing money and until when. One
controller at a time: a lock file is held for as long as the records are open.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trainwright.errors import ConfigError

VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pods (
    name TEXT PRIMARY KEY, role TEXT NOT NULL, gpu TEXT NOT NULL, cloud TEXT NOT NULL, data_center TEXT NOT NULL,
    usd_per_hour REAL NOT NULL, token TEXT NOT NULL, intent_at REAL NOT NULL, deadline REAL NOT NULL,
    lease_until REAL NOT NULL, phase TEXT NOT NULL, phase_since REAL NOT NULL, pod_id TEXT NOT NULL,
    boot_id TEXT NOT NULL, trust_group TEXT NOT NULL, jobs INTEGER NOT NULL, faults INTEGER NOT NULL,
    end_reason TEXT NOT NULL, ended_at REAL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS live_pods ON pods (ended_at) WHERE ended_at IS NULL;
CREATE TABLE IF NOT EXISTS spend (
    pod TEXT NOT NULL, kind TEXT NOT NULL CHECK (kind IN ('working', 'booting', 'idle', 'lost')),
    began REAL NOT NULL, seconds REAL NOT NULL, usd REAL NOT NULL);
CREATE TABLE IF NOT EXISTS jobs (
    key TEXT PRIMARY KEY, spec TEXT NOT NULL, student TEXT NOT NULL, trust_group TEXT NOT NULL,
    rollouts INTEGER NOT NULL, wall_seconds REAL NOT NULL, result TEXT, finished_at REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempts (
    id TEXT PRIMARY KEY, key TEXT NOT NULL, pod TEXT NOT NULL, began REAL NOT NULL, ended REAL,
    ending TEXT NOT NULL, detail TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS attempts_by_key ON attempts (key);
CREATE TABLE IF NOT EXISTS baselines (key TEXT PRIMARY KEY, replies TEXT NOT NULL) WITHOUT ROWID;
"""
KINDS = ("working", "booting", "idle", "lost")
KIND_OF = {"INTENT": "booting", "BOOTING": "booting", "RESTARTING": "booting", "IDLE": "idle", "WORKING": "working"}


@dataclass
class PodRow:
    """One pod. `phase` is INTENT, BOOTING, IDLE, WORKING or RESTARTING; times are epoch seconds.

    `trust_group` names the group whose code has run since the container started; empty means none has.
    """

    name: str
    role: str
    gpu: str
    cloud: str
    data_center: str
    usd_per_hour: float
    token: str
    intent_at: float
    deadline: float
    lease_until: float
    phase: str
    phase_since: float
    pod_id: str = ""
    boot_id: str = ""
    trust_group: str = ""
    jobs: int = 0
    faults: int = 0
    end_reason: str = ""
    ended_at: float | None = None

    def usd(self, now: float) -> float:
        """Return what the current phase has cost so far."""
        return self.usd_per_hour * max(0.0, now - self.phase_since) / 3600

    def reserved(self, now: float) -> float:
        """Return what the pod can still cost without us: its price until its lease ends."""
        return self.usd_per_hour * max(0.0, self.lease_until - now) / 3600


FILE = "pods.sqlite"
"""The records' name in a run's folder."""

Spend = dict[str, tuple[float, float]]
"""Pod-seconds and USD by kind, every one of `KINDS`."""

COLUMNS = [column.name for column in fields(PodRow)]


@dataclass(frozen=True)
class Attempt:
    """One try of a job on one pod; `ending` is empty while it's open."""

    id: str
    key: str
    pod: str
    began: float


@dataclass(frozen=True)
class JobRow:
    """A job by its key: the hash of its specification, and its result (JSON) once it has one."""

    key: str
    spec: str
    student: str
    trust_group: str
    rollouts: int
    wall_seconds: float
    result: dict[str, Any] | None = None


class Records:
    """The open records. Not shared between threads. Raises `ConfigError` when another process holds them."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigError(f"{path}: another process is using these pods; stop it first") from None
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # the file holds the pods' tokens
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(SCHEMA)
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('version', ?)", [str(VERSION)])
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('owner', ?)", [secrets.token_hex(4)])
        meta = dict(self._db.execute("SELECT key, value FROM meta").fetchall())
        if meta["version"] != str(VERSION):
            raise ConfigError(f"{path}: written by another version of trainwright ({meta['version']})")
        self.owner = meta["owner"]

    def close(self) -> None:
        """Close the file and release the lock; safe to call twice."""
        if self._lock >= 0:
            self._db.close()
            os.close(self._lock)
            self._lock = -1

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Make everything inside one durable write."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # Pods and money

    def intend(self, row: PodRow) -> None:
        """Write the row of a pod that is about to be asked for."""
        with self._transaction():
            marks = ", ".join("?" for _ in COLUMNS)
            values = [getattr(row, column) for column in COLUMNS]
            self._db.execute(f"INSERT INTO pods ({', '.join(COLUMNS)}) VALUES ({marks})", values)

    def update(self, row: PodRow, **changes: Any) -> None:
        """Write changed columns of a row, in the file first."""
        with self._transaction():
            self._set(row, changes)
        for column, value in changes.items():
            setattr(row, column, value)

    def move(self, row: PodRow, phase: str, now: float, *, kind: str = "", **changes: Any) -> None:
        """Enter a phase: book the one that ends, as `kind` if given (`lost` when its work was in vain)."""
        changes = {"phase": phase, "phase_since": now, **changes}
        with self._transaction():
            self._book(row, now, kind)
            self._set(row, changes)
        for column, value in changes.items():
            setattr(row, column, value)

    def end(self, row: PodRow, now: float, reason: str, *, kind: str = "", existed: bool = True) -> None:
        """Close the row of a pod that is confirmed to be gone, or that never came to be (then it cost nothing)."""
        with self._transaction():
            if existed:
                self._book(row, now, kind)
            self._set(row, {"ended_at": now, "end_reason": reason})
        row.ended_at, row.end_reason = now, reason

    def stands_for(self, pod_id: str, name: str) -> bool:
        """Return whether the books of some row, ended or not, are a pod's: by its id, or by its name while no id is
        known."""
        query = "SELECT 1 FROM pods WHERE pod_id = ? OR (name = ? AND pod_id = '')"
        return self._db.execute(query, [pod_id, name]).fetchone() is not None

    def book_stray(self, name: str, seconds: float, usd_per_hour: float, now: float) -> None:
        """Book a pod without a row, such as the twin of a create whose reply was lost, all of it as lost."""
        with self._transaction():
            values = [name, "lost", now - seconds, seconds, usd_per_hour * seconds / 3600]
            self._db.execute("INSERT INTO spend VALUES (?, ?, ?, ?, ?)", values)

    def live(self) -> list[PodRow]:
        """Return the rows of pods that may exist, oldest first."""
        return _live(self._db)

    def booked(self) -> Spend:
        """Return seconds and dollars of all closed phases by kind."""
        return _booked(self._db)

    def spend(self, now: float) -> Spend:
        """Return seconds and dollars by kind, the phases that still run included."""
        return _spend(self._db, now)

    def _set(self, row: PodRow, changes: dict[str, Any]) -> None:
        assert set(changes) <= set(COLUMNS)
        columns = ", ".join(f"{column} = ?" for column in changes)
        self._db.execute(f"UPDATE pods SET {columns} WHERE name = ?", [*changes.values(), row.name])

    def _book(self, row: PodRow, now: float, kind: str) -> None:
        seconds = max(0.0, now - row.phase_since)
        values = [row.name, kind or KIND_OF[row.phase], row.phase_since, seconds, row.usd_per_hour * seconds / 3600]
        self._db.execute("INSERT INTO spend VALUES (?, ?, ?, ?, ?)", values)

    # Jobs

    def job(self, key: str) -> JobRow | None:
        """Return a job, None when the key is new."""
        query = "SELECT key, spec, student, trust_group, rollouts, wall_seconds, result FROM jobs WHERE key = ?"
        found = self._db.execute(query, [key]).fetchone()
        if not found:
            return None
        result = json.loads(found[6]) if found[6] else None
        return JobRow(found[0], found[1], found[2], found[3], found[4], found[5], result)

    def submit(self, job: JobRow) -> None:
        """Write a job before it is queued; a key that is known stays as it is."""
        values = [job.key, job.spec, job.student, job.trust_group, job.rollouts, job.wall_seconds]
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO jobs VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)", values)

    def begin(self, attempt: Attempt) -> None:
        """Write an attempt before anything of it reaches the pod."""
        with self._transaction():
            values = [attempt.id, attempt.key, attempt.pod, attempt.began]
            self._db.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, NULL, '', '')", values)

    def conclude(
        self, attempt: Attempt, now: float, ending: str, detail: str = "", result: dict[str, Any] | None = None
    ) -> bool:
        """Close an attempt and, with a result, its job. Return false when the job already had one: the first wins."""
        with self._transaction():
            query = "UPDATE attempts SET ended = ?, ending = ?, detail = ? WHERE id = ? AND ended IS NULL"
            self._db.execute(query, [now, ending, detail[:500], attempt.id])
            if result is None:
                return False
            query = "UPDATE jobs SET result = ?, finished_at = ? WHERE key = ? AND result IS NULL"
            return self._db.execute(query, [json.dumps(result), now, attempt.key]).rowcount == 1

    def reopen(self, key: str) -> None:
        """Forget the result of a job whose weights are no longer kept, so that it can run again."""
        with self._transaction():
            self._db.execute("UPDATE jobs SET result = NULL, finished_at = NULL WHERE key = ?", [key])

    def open_attempts(self) -> list[Attempt]:
        """Return the attempts that haven't ended."""
        query = "SELECT id, key, pod, began FROM attempts WHERE ended IS NULL ORDER BY began"
        return [Attempt(*values) for values in self._db.execute(query)]

    def attempts(self, key: str) -> list[tuple[str, str, str]]:
        """Return id, pod and ending of every attempt of a job, in order."""
        query = "SELECT id, pod, ending FROM attempts WHERE key = ? ORDER BY began, id"
        return [tuple(values) for values in self._db.execute(query, [key])]

    def finished_keys(self) -> list[str]:
        """Return the keys of jobs with a result, newest first."""
        query = "SELECT key FROM jobs WHERE result IS NOT NULL ORDER BY finished_at DESC, key"
        return [key for (key,) in self._db.execute(query)]

    # Baselines

    def baseline(self, key: str) -> list[str] | None:
        """Return cached replies of a base student, None when it was never measured on these prompts."""
        found = self._db.execute("SELECT replies FROM baselines WHERE key = ?", [key]).fetchone()
        return json.loads(found[0]) if found else None

    def keep_baseline(self, key: str, replies: list[str]) -> None:
        """Keep replies of a base student."""
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO baselines VALUES (?, ?)", [key, json.dumps(replies)])


def read_spend(folder: Path, now: float) -> Spend | None:
    """Return what the pods of a run folder have cost until now, None when it never had any; safe while a run works.

    Raises `ConfigError` for a file that can't be read.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return _spend(db, now)
    except sqlite3.Error as error:
        raise ConfigError(f"{path}: can't be read: {error}") from None


def _live(db: sqlite3.Connection) -> list[PodRow]:
    query = f"SELECT {', '.join(COLUMNS)} FROM pods WHERE ended_at IS NULL ORDER BY intent_at, name"
    return [PodRow(*values) for values in db.execute(query)]


def _booked(db: sqlite3.Connection) -> Spend:
    query = "SELECT kind, SUM(seconds), SUM(usd) FROM spend GROUP BY kind"
    found = {kind: (seconds, usd) for kind, seconds, usd in db.execute(query)}
    return {kind: found.get(kind, (0.0, 0.0)) for kind in KINDS}


def _spend(db: sqlite3.Connection, now: float) -> Spend:
    totals = _booked(db)
    for row in _live(db):
        kind, until = KIND_OF[row.phase], min(now, row.lease_until)  # then a pod without a controller ends itself
        seconds, usd = totals[kind]
        totals[kind] = seconds + max(0.0, until - row.phase_since), usd + row.usd(until)
    return totals
