"""The one error tree. Every message names what was wrong, where, and what to do about it.

`TrainwrightError` and its children are for people: the command line prints the message and exits non-zero, without a
traceback. `JobRejected` and `JobFault` are verdicts on a job, `InfraFault` is a verdict on our own machinery; they
carry a reason code and are turned into an `Outcome`, never into a crash of the run.
"""

from __future__ import annotations


class TrainwrightError(Exception):
    """A mistake of the user or of the machine that stops the command; the message is the whole report."""


class ConfigError(TrainwrightError):
    """A configuration file or option that can't be used."""


class SandboxError(TrainwrightError):
    """No sandbox can be built on this machine."""


class JobRejected(Exception):
    """The gate refuses a job.

    `code` is a short stable reason such as `toml_range`, `file` and `line` say where, `message` is one sentence that
    would let a model repair the job.
    """

    def __init__(self, code: str, message: str, file: str = "", line: int = 0) -> None:
        super().__init__(code, message, file, line)
        self.code, self.message, self.file, self.line = code, message, file, line

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{where}{self.message} [{self.code}]"


class JobFault(Exception):
    """A job failed by its own doing while it ran: reason code, one sentence, and the place where one is known."""

    def __init__(self, code: str, message: str, file: str = "", line: int = 0) -> None:
        super().__init__(code, message, file, line)
        self.code, self.message, self.file, self.line = code, message, file, line

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{where}{self.message} [{self.code}]"


class InfraFault(Exception):
    """Our machinery failed: a lost worker, a dead server, a full disk. Retried elsewhere, never scored."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"
