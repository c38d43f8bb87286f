"""`trainwright pods list | reap | smoke`: the pods of the account, for people and for cron.

Exit codes. list: 0. reap: 0 nothing was found, 1 pods were found and deleted, 3 the API failed and pods may be left.
smoke: 0 everything held, 1 something didn't. 2 everywhere: a missing key or a wrong option.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainwright.errors import ConfigError

if TYPE_CHECKING:
    from trainwright.pools.runpod.api import Pod

app = typer.Typer(
    help="List, reap and try out the Runpod pods of this account. Needs RUNPOD_API_KEY; see docs/runpod.md.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

FOUND, FAILED = 1, 3


@app.command("list", epilog="Example: trainwright pods list --gpus")
def list_pods(
    gpus: Annotated[bool, typer.Option("--gpus", help="List what can be rented instead, cheapest first.")] = False,
    cloud: Annotated[str, typer.Option(help="SECURE or COMMUNITY, with --gpus.")] = "SECURE",
) -> None:
    """List trainwright's pods: id, name, status, price, age, and how long until their own deadline."""
    _run(_list_gpus(cloud) if gpus else _list_pods())


@app.command(epilog="Example for cron: trainwright pods reap --older-than 6h || mail -s pods you@example.org")
def reap(
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Also delete pods older than this, such as 90m or 6h.")
    ] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Delete every trainwright pod, live runs included.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which.")] = False,
) -> None:
    """Delete trainwright's pods that are past their own deadline; exit code 1 when there were any.

    Only pods whose names are trainwright's are ever touched.
    """
    _run(_reap(seconds(older_than) if older_than else None, everything, dry_run))


@app.command(epilog="Example: trainwright pods smoke examples/full.toml --max-usd 1 --yes")
def smoke(
    config: Annotated[Path, typer.Argument(metavar="FILE", help="A run's TOML file with the table [pool.runpod].")],
    max_usd: Annotated[float, typer.Option(help="Stop before this is spent.", min=0.05)] = 1.0,
    report: Annotated[Path, typer.Option(help="Write what was seen to this JSON file.")] = Path("runpod-smoke.json"),
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask; this spends money.")] = False,
) -> None:
    """Rent one real pod for some minutes and check every assumption that only a live run can settle."""
    from trainwright.config import load_config
    from trainwright.pools.runpod.smoke import smoke_test

    settings = load_config(config).pool.runpod
    if settings is None:
        raise ConfigError(f"{config}: has no table [pool.runpod]; see docs/runpod.md")
    if not yes:
        typer.confirm(f"This rents a pod and spends up to ${max_usd:.2f}. Go on?", abort=True)
    _run(smoke_test(settings, max_usd, report))


def seconds(text: str) -> float:
    """Return the seconds of an age such as `90m`, `6h`, `2d` or `45s`; raise `ConfigError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if not match:
        raise ConfigError(f"{text!r} is not an age; write a number and s, m, h or d, such as 90m")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def _run(command: Coroutine[Any, Any, int]) -> None:
    """Run a command's coroutine and exit with its code; the API's failures are one line."""
    from trainwright.pools.runpod.api import RunpodError, WrongKey

    try:
        code = asyncio.run(command)
    except WrongKey as error:
        raise ConfigError(f"Runpod refuses RUNPOD_API_KEY ({error})") from None
    except RunpodError as error:
        print(f"trainwright: Runpod failed, pods may be left: {error}", file=sys.stderr)
        code = FAILED
    if code:
        raise typer.Exit(code)


async def _list_pods() -> int:
    from trainwright.pools.runpod.names import PodName
    from trainwright.pools.runpod.reaper import age

    pods = [(pod, name) for pod in await _account_pods() if (name := PodName.parse(pod.name))]
    for pod, name in pods:
        left = (name.deadline - time.time()) / 60
        old = age(pod, time.time()) / 60
        print(
            f"{pod.id}  {pod.name}  {pod.status:12}  ${pod.usd_per_hour:.2f}/h  {old:.0f} min old  {left:.0f} min left"
        )
    total = sum(pod.usd_per_hour for pod, _ in pods)
    print(f"{len(pods)} pods, ${total:.2f} an hour")
    return 0


async def _list_gpus(cloud: str) -> int:
    if cloud not in {"SECURE", "COMMUNITY"}:
        raise ConfigError(f"--cloud must be SECURE or COMMUNITY, not {cloud!r}")
    from trainwright.pools.runpod.api import RunpodApi
    from trainwright.pools.runpod.config import api_key, endpoints

    async with RunpodApi(endpoints()[0], api_key()) as api:
        offers = await api.offers(cloud, "12.8")
    for offer in sorted(offers, key=lambda one: one.usd_per_hour):
        stock = ", ".join(f"{center} {level}" for center, level in sorted(offer.stock.items()))
        print(f"${offer.usd_per_hour:6.2f}/h  {offer.memory_gb:4} GB  {offer.gpu:32}  {stock}")
    return 0


async def _reap(older_than: float | None, everything: bool, dry_run: bool) -> int:
    from trainwright.pools.runpod.api import RunpodApi
    from trainwright.pools.runpod.config import api_key, endpoints
    from trainwright.pools.runpod.names import PodName
    from trainwright.pools.runpod.reaper import age, overdue, sweep

    now = time.time()

    def reason_of(pod: Pod) -> str:
        if reason := overdue(pod, now):
            return reason
        if older_than is not None and age(pod, now) > older_than:
            return f"{age(pod, now) / 60:.0f} minutes old"
        return "all were asked for" if everything else ""

    async with RunpodApi(endpoints()[0], api_key()) as api:
        pods = [pod for pod in await api.pods() if PodName.parse(pod.name) and pod.status != "TERMINATED"]
        doomed = [pod for pod in pods if reason_of(pod)]
        for pod in doomed:
            print(f"{pod.id}  {pod.name}  ${pod.usd_per_hour:.2f}/h: {reason_of(pod)}")
        if doomed and not dry_run:
            async for reaped in sweep(api, doomed, reason_of):
                print(f"{reaped.pod.id}  deleted")
    print(f"{len(doomed)} of {len(pods)} pods {'would be ' if dry_run else ''}deleted")
    return FOUND if doomed else 0


async def _account_pods() -> list[Pod]:
    from trainwright.pools.runpod.api import RunpodApi
    from trainwright.pools.runpod.config import api_key, endpoints

    async with RunpodApi(endpoints()[0], api_key()) as api:
        return await api.pods()
