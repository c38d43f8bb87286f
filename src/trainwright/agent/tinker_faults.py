"""What went wrong between us and a Tinker server: worth another attempt, or one line for the user.

Checked against tinker 0.38.0. The SDK retries a request for five minutes (408, 409, 429, 5xx and lost connections),
waits an hour while an account can't pay (402), and waits for ever while the server is short of capacity; what comes
here is what is left after that, or what our own deadlines cut short.
"""

from __future__ import annotations

import logging

import tinker

from trainwright.errors import ConfigError, TrainwrightError

SDK = "tinker 0.38"


class Trouble(Exception):
    """A failed call that may succeed on a new connection. `transient` ones are waited out, others tried a few times."""

    def __init__(self, message: str, *, transient: bool, status: int | None = None) -> None:
        super().__init__(message)
        self.transient, self.status = transient, status


class Overdue(Exception):
    """No answer within our deadline."""


class Hearing(logging.Handler):
    """Keeps the SDK's latest warning, which is all it says when it waits for capacity or for a payment."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.latest = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "try_again" not in text:  # said at every poll of every request
            self.latest = text.splitlines()[0]


def listen() -> Hearing:
    """Return a handler that takes the SDK's log from now on; the SDK would else write it between our lines."""
    logger = logging.getLogger("tinker")
    for handler in logger.handlers:
        if isinstance(handler, Hearing):
            return handler
    hearing = Hearing()
    logger.addHandler(hearing)
    logger.propagate = False
    return hearing


def judge(error: BaseException, doing: str, heard: str = "") -> Exception:
    """Return what to raise instead of what the SDK raised while `doing` something.

    `Trouble` when another attempt makes sense; `ConfigError` for a key or a request that will never work;
    `TrainwrightError` when the run must stop (no money, another protocol).
    """
    status, said = _status(error), _words(error)
    heard_suffix = f"; the SDK said: {heard}" if heard else ""
    if status in (401, 403):
        return ConfigError(f"{doing}: the server refuses the key ({said}); set TINKER_API_KEY to one that it knows")
    if status == 402 or (isinstance(error, Overdue) and "billing" in heard):
        return TrainwrightError(
            f"{doing}: the account can't pay ({heard or said}). Nothing is lost: add credit at the Tinker "
            "console, then give the same command again"
        )
    if isinstance(error, AssertionError | tinker.APIResponseValidationError) or ("payload" in said and "proto" in said):
        return skew(doing, said)
    if isinstance(error, Overdue):
        return Trouble(f"{doing}: {said}{heard_suffix}", transient=True)
    if isinstance(error, tinker.RequestFailedError):
        mine = error.category == tinker.types.RequestErrorCategory.User
        return Trouble(f"{doing}: {said}", transient=not mine)
    if status is not None:
        again = status in (408, 409, 429) or status >= 500
        return Trouble(f"{doing}: status {status}: {said}{heard_suffix}", transient=again, status=status)
    if isinstance(error, tinker.APIConnectionError):
        return Trouble(f"{doing}: no connection ({said})", transient=True)
    return Trouble(f"{doing}: {type(error).__name__}: {said}", transient=False)


def skew(doing: str, said: str) -> TrainwrightError:
    """Return the error of a server that answers, but not as this SDK expects."""
    return TrainwrightError(
        f"{doing}: the server doesn't speak the protocol of the installed SDK ({said}). trainwright was checked with "
        f"{SDK}; see 'Versions' in docs/tinker.md"
    )


def _status(error: BaseException | None) -> int | None:
    """Return the HTTP status behind an error: the SDK wraps some of them in ValueErrors and RuntimeErrors."""
    while error is not None:
        if isinstance(error, tinker.APIStatusError):
            status: int = error.status_code
            return status
        error = error.__cause__
    return None


def _words(error: BaseException) -> str:
    """Return an error's message in one line of bearable length, the server's own words where there are some."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, tinker.APIStatusError):
        cause = cause.__cause__
    text = str(error)
    if isinstance(cause, tinker.APIStatusError):
        detail = cause.body.get("detail") if isinstance(cause.body, dict) else None
        text = str(detail or cause.message)
    line = " ".join(text.split()) or type(error).__name__
    return line if len(line) <= 300 else f"{line[:300]}..."
