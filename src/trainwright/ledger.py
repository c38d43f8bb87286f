"""The ledger: every group, episode and attempt of a run in one SQLite file (WAL), written before the next step begins.

Episode ids are idempotent keys: `train-0003-1-5` is member 5 of group 1 of step 3, whoever writes it and however often
the run was killed. An episode without an outcome is unfinished and is done again from its stored attempts; one with an
outcome is never touched again. A group is taken by one step, in the transaction that commits it; which one is a matter
of time where steps overlap. Columns named `*_seconds`, `worker` and `written` differ between two runs of one seed;
everything else is equal where steps do not overlap (see `fingerprint`).
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainwright.agent.policy import Completion
from trainwright.cache import write_atomically
from trainwright.errors import ConfigError, TrainwrightError
from trainwright.messages import Message
from trainwright.reward import VALIDITY_START

VERSION = 2
SCHEMA = f"""
BEGIN;
CREATE TABLE IF NOT EXISTS run (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS steps (
    step INTEGER PRIMARY KEY, validity REAL NOT NULL, metrics TEXT NOT NULL, checkpoint TEXT NOT NULL,
    wall_seconds REAL NOT NULL, written REAL NOT NULL);
CREATE TABLE IF NOT EXISTS groups (
    id TEXT PRIMARY KEY, arm TEXT NOT NULL, step INTEGER NOT NULL, number INTEGER NOT NULL, family TEXT NOT NULL,
    task TEXT NOT NULL, validity_weight REAL NOT NULL, written REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS taken (
    group_id TEXT PRIMARY KEY REFERENCES groups(id), step INTEGER NOT NULL, staleness INTEGER NOT NULL,
    used INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempts (
    episode TEXT NOT NULL, number INTEGER NOT NULL, version INTEGER NOT NULL, messages TEXT NOT NULL,
    completion TEXT NOT NULL, job TEXT, verdict TEXT, written REAL NOT NULL, PRIMARY KEY (episode, number)
    ) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS episodes (
    id TEXT PRIMARY KEY, group_id TEXT NOT NULL REFERENCES groups(id), arm TEXT NOT NULL, step INTEGER NOT NULL,
    family TEXT NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL, student TEXT NOT NULL,
    valid INTEGER NOT NULL, first_try INTEGER NOT NULL, attempts INTEGER NOT NULL, job TEXT NOT NULL,
    pre REAL, post REAL, uplift_error REAL, reference REAL, gain REAL NOT NULL, reward REAL,
    rollouts INTEGER NOT NULL, usd REAL NOT NULL, sandbox TEXT NOT NULL, metrics TEXT NOT NULL,
    cpu_seconds TEXT NOT NULL, wall_seconds REAL NOT NULL, worker TEXT NOT NULL, written REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS episodes_by_step ON episodes (arm, step);
INSERT OR IGNORE INTO run VALUES ('version', '{VERSION}');
COMMIT;
"""
NOT_REPRODUCIBLE = {"written", "wall_seconds", "cpu_seconds", "worker", "version", "validity_weight"}
"""The last two follow from the step where steps do not overlap, and are a matter of time where they do."""


@dataclass(frozen=True)
class Attempt:
    """One answer of the agent: what it was shown, what it said, and the gate's verdict once known.

    `verdict` is empty for an accepted job, the refusal as text otherwise, None while undecided. `version` is the
    number of updates that the policy had taken when it was asked.
    """

    number: int
    messages: list[Message]
    completion: Completion
    verdict: str | None = None
    version: int = 0


@dataclass(frozen=True)
class Episode:
    """A finished episode: a row of the ledger. Scores are None where nothing was measured."""

    id: str
    group_id: str
    arm: str
    step: int
    family: str
    outcome: str
    reason: str = ""
    detail: str = ""
    student: str = ""
    valid: bool = False
    first_try: bool = False
    attempts: int = 0
    job: str = ""
    pre: float | None = None
    post: float | None = None
    uplift_error: float | None = None
    reference: float | None = None
    gain: float = 0.0
    reward: float | None = None
    rollouts: int = 0
    usd: float = 0.0
    sandbox: str = ""
    metrics: list[dict[str, float]] = field(default_factory=list)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0
    worker: str = ""


@dataclass(frozen=True)
class Taken:
    """A group that a step took `staleness` updates after its oldest answer: to learn from it or, unused, to drop it."""

    group: str
    staleness: int
    used: bool


@dataclass(frozen=True)
class Step:
    """A committed step: its checkpoint exists, its update is done, it will not be repeated.

    `checkpoint` is empty where the policy can't be trained.
    """

    step: int
    validity: float
    metrics: dict[str, Any]
    checkpoint: str
    wall_seconds: float


class Ledger:
    """The ledger of one run folder; one process writes it. Reading while it is written is safe.

    A file that is damaged, of another version or can't be written raises `TrainwrightError`, whatever the call.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        if read_only and not path.exists():
            raise ConfigError(f"{path}: no ledger there; is {path.parent} a run folder?")
        self.path = path
        with self._reported():
            mode = "ro" if read_only else "rwc"
            self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)
            self._db.row_factory = sqlite3.Row
        try:
            self._check_version(read_only)
            if not read_only:
                with self._reported():
                    self._db.execute("PRAGMA journal_mode=WAL")
                    # NORMAL is safe against any kill of the process; a power cut may lose the last commits.
                    self._db.execute("PRAGMA synchronous=NORMAL")
                    self._db.executescript(SCHEMA)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; the write-ahead log is folded in."""
        self._db.close()

    def _check_version(self, read_only: bool) -> None:
        tables = {row["name"] for row in self._rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            if read_only:
                raise ConfigError(f"{self.path}: the run has not started yet")
            return
        if not {"run", "steps", "groups", "attempts", "episodes"} <= tables:  # those of every version
            raise ConfigError(f"{self.path}: not a trainwright ledger; choose another folder")
        version = self.get("version")
        if version != VERSION:
            raise ConfigError(
                f"{self.path}: a ledger of version {version}, and this trainwright reads version {VERSION}; "
                "use the trainwright that wrote it, or choose another folder"
            )

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn what SQLite raises into one line that names the file."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise  # a mistake of ours
        except sqlite3.Error as error:
            raise TrainwrightError(f"{self.path}: the ledger can't be used: {error}") from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._reported(), self._db:
            yield self._db

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        with self._reported():
            return self._db.execute(query, values).fetchall()

    # -- facts about the run: configuration, versions, hashes, status

    def set(self, key: str, value: Any) -> None:
        """Store one fact about the run as JSON."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO run VALUES (?, ?)", (key, json.dumps(value)))

    def get(self, key: str, default: Any = None) -> Any:
        """Return a fact about the run, or the default."""
        rows = self._rows("SELECT value FROM run WHERE key = ?", (key,))
        return json.loads(rows[0]["value"]) if rows else default

    # -- groups and episodes

    def add_group(
        self,
        id: str,
        arm: str,
        step: int,
        number: int,
        family: str,
        task: dict[str, Any],
        validity_weight: float = VALIDITY_START,
    ) -> float:
        """Record a group and its task before anything is sampled for it; a second time changes nothing.

        `step` is the one that it is drawn for. Returns the validity weight of its rewards: the first one recorded.
        """
        with self._transaction() as db:
            row = (id, arm, step, number, family, json.dumps(task, sort_keys=True), validity_weight, time.time())
            db.execute("INSERT OR IGNORE INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return float(self._rows("SELECT validity_weight FROM groups WHERE id = ?", (id,))[0][0])

    def drawn(self, arm: str) -> int:
        """Return the number of steps for which groups were drawn, those of unfinished ones included."""
        return int(self._rows("SELECT COALESCE(MAX(step) + 1, 0) FROM groups WHERE arm = ?", (arm,))[0][0])

    def taken(self) -> list[Taken]:
        """Return the groups that committed steps took."""
        rows = self._rows("SELECT * FROM taken ORDER BY step, group_id")
        return [Taken(row["group_id"], row["staleness"], bool(row["used"])) for row in rows]

    def add_attempts(self, attempts: Sequence[tuple[str, Attempt]]) -> None:
        """Record answers as `(episode id, attempt)`, in one transaction, before their jobs are looked at."""
        with self._transaction() as db:
            for episode, attempt in attempts:
                row = (
                    episode,
                    attempt.number,
                    attempt.version,
                    json.dumps(attempt.messages),
                    json.dumps(asdict(attempt.completion)),
                    None,
                    attempt.verdict,
                    time.time(),
                )
                db.execute("INSERT OR IGNORE INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def set_verdict(self, episode: str, number: int, job: str, verdict: str) -> None:
        """Record the gate's verdict on an attempt: the job's hash and the refusal, empty when accepted."""
        with self._transaction() as db:
            db.execute(
                "UPDATE attempts SET job = ?, verdict = ? WHERE episode = ? AND number = ?",
                (job, verdict, episode, number),
            )

    def attempts(self, episode: str) -> list[Attempt]:
        """Return the attempts of an episode in order."""
        rows = self._rows("SELECT * FROM attempts WHERE episode = ? ORDER BY number", (episode,))
        return [
            Attempt(
                row["number"],
                json.loads(row["messages"]),
                Completion(**json.loads(row["completion"])),
                row["verdict"],
                row["version"],
            )
            for row in rows
        ]

    def oldest_version(self, episodes: Sequence[str]) -> int:
        """Return the version of the policy that wrote the oldest answer of these episodes."""
        marks = ", ".join("?" * len(episodes))
        return int(self._rows(f"SELECT MIN(version) FROM attempts WHERE episode IN ({marks})", episodes)[0][0])

    def completions_usd(self) -> float:
        """Return what all answers have cost, those of unfinished episodes included."""
        return sum(float(row[0]) for row in self._rows("SELECT json_extract(completion, '$.usd') FROM attempts"))

    def finish(self, episode: Episode) -> None:
        """Record an episode's outcome; the first one wins, a second one is ignored."""
        values = asdict(episode)
        values["metrics"], values["cpu_seconds"] = json.dumps(episode.metrics), json.dumps(episode.cpu_seconds)
        values["written"] = time.time()
        names = ", ".join(values)
        marks = ", ".join(f":{name}" for name in values)
        with self._transaction() as db:
            db.execute(f"INSERT INTO episodes ({names}) VALUES ({marks}) ON CONFLICT (id) DO NOTHING", values)

    def episode(self, id: str) -> Episode | None:
        """Return a finished episode, or None."""
        rows = self._rows("SELECT * FROM episodes WHERE id = ?", (id,))
        return _episode(rows[0]) if rows else None

    def episodes(self, arm: str, step: int | None = None) -> list[Episode]:
        """Return the finished episodes of an arm (of one step), by step and id."""
        rows = self._rows("SELECT * FROM episodes WHERE arm = ? ORDER BY step, id", (arm,))
        return [_episode(row) for row in rows if step is None or row["step"] == step]

    def all_episodes(self) -> list[Episode]:
        """Return every finished episode."""
        return [_episode(row) for row in self._rows("SELECT * FROM episodes ORDER BY id")]

    def groups(self) -> list[dict[str, Any]]:
        """Return every group with its task as plain data."""
        rows = self._rows("SELECT * FROM groups ORDER BY id")
        return [dict(row) | {"task": json.loads(row["task"])} for row in rows]

    def arms(self) -> list[str]:
        """Return the arms that have episodes: `train`, `probe-before`, ..."""
        return [row[0] for row in self._rows("SELECT DISTINCT arm FROM episodes ORDER BY arm")]

    # -- steps

    def commit_step(self, step: Step, taken: Sequence[Taken] = ()) -> None:
        """Record a step whose checkpoint is on disk, with the groups that it took: neither is ever repeated."""
        row = (step.step, step.validity, json.dumps(step.metrics), step.checkpoint, step.wall_seconds, time.time())
        with self._transaction() as db:
            db.execute("INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?)", row)
            rows = [(one.group, step.step, one.staleness, one.used) for one in taken]
            db.executemany("INSERT INTO taken VALUES (?, ?, ?, ?)", rows)

    def steps(self) -> list[Step]:
        """Return the committed steps in order."""
        return [
            Step(row["step"], row["validity"], json.loads(row["metrics"]), row["checkpoint"], row["wall_seconds"])
            for row in self._rows("SELECT * FROM steps ORDER BY step")
        ]

    def write_metrics(self, path: Path) -> None:
        """Write one JSON line a committed step, for other programs' plots."""
        lines = [
            json.dumps(
                {"step": step.step + 1, "validity_weight": step.validity, "seconds": step.wall_seconds} | step.metrics
            )
            for step in self.steps()
        ]
        write_atomically(path, "".join(f"{line}\n" for line in lines).encode())

    def fingerprint(self) -> str:
        """Return a SHA-256 over everything that two runs of one seed must share, killed or not."""
        digest = hashlib.sha256()
        for table in ("groups", "attempts", "episodes", "steps"):
            for row in self._rows(f"SELECT * FROM {table} ORDER BY 1, 2"):
                kept = {name: row[name] for name in row.keys() if name not in NOT_REPRODUCIBLE}  # noqa: SIM118
                if table == "steps":
                    metrics = json.loads(kept["metrics"])
                    kept["metrics"] = {name: metrics[name] for name in sorted(metrics) if "second" not in name}
                digest.update(json.dumps([table, kept], sort_keys=True).encode())
        return digest.hexdigest()


def _episode(row: sqlite3.Row) -> Episode:
    values = {name: row[name] for name in row.keys() if name != "written"}  # noqa: SIM118
    values["metrics"], values["cpu_seconds"] = json.loads(values["metrics"]), json.loads(values["cpu_seconds"])
    values["valid"], values["first_try"] = bool(values["valid"]), bool(values["first_try"])
    return Episode(**values)
