"""The command line: one short function a verb; everything heavy is imported inside the verb."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from trainwright import __version__
from trainwright.errors import InfraFault, TrainwrightError
from trainwright.pools.runpod.commands import app as pods

app = typer.Typer(
    help="A language model learns, by reinforcement learning, to write complete RL training jobs for smaller models.",
    epilog="Start with: trainwright run examples/nano.toml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(pods, name="pods")

Unsafe = Annotated[
    bool, typer.Option("--unsafe-no-sandbox", help="Run job code without a sandbox where none can be built.")
]
JobFolder = Annotated[Path, typer.Argument(metavar="JOB", help="A job's folder, or a file with an agent's answer.")]
TaskName = Annotated[
    str, typer.Option("--task", metavar="FAMILY[:SEED]", help="The task: a family, and the seed that draws it (0).")
]

Settings = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Take students, engine, pool and measuring from a run's TOML file."),
]


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command(epilog="Example: trainwright run examples/nano.toml --set seed=1 --set folder=runs/nano-1")
def run(
    config: Annotated[Path, typer.Argument(metavar="FILE", help="The run's TOML file.")],
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines for a log instead of a live table.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Start without being asked, whatever it will cost.")] = False,
    agent: Annotated[
        str, typer.Option(metavar="openai:MODEL", help="Measure this model on an OpenAI-compatible server instead.")
    ] = "",
    base_url: Annotated[str, typer.Option(metavar="URL", help="That server, up to /v1; OpenAI's by default.")] = "",
) -> None:
    """Train the trainer agent; the same command resumes a run that was stopped or killed."""
    from trainwright.agent.chat_settings import chat_changes

    try:
        _run(config, [*chat_changes(agent, base_url), *(change or [])], plain, yes)
    except KeyboardInterrupt:
        options = [part for one in change or [] for part in ("--set", one)] + ["--plain"] * plain + ["--yes"] * yes
        options += ["--agent", agent] * bool(agent) + ["--base-url", base_url] * bool(base_url)
        again = shlex.join(["trainwright", "run", str(config), *options])
        print(f"\nstopped; nothing is lost. Resume with: {again}", file=sys.stderr)
        raise typer.Exit(130) from None


def _run(config: Path, change: list[str], plain: bool, yes: bool) -> None:
    from trainwright.backends import preflight
    from trainwright.config import load_config
    from trainwright.estimate import confirm
    from trainwright.report.view import make_view
    from trainwright.run import run as run_config

    settings = load_config(config, change)
    preflight(settings)
    confirm(settings, yes)
    view = make_view(plain)
    try:
        run_config(settings, view)
    finally:
        view.close()


@app.command(epilog="Example: trainwright estimate examples/full.toml --set steps=10")
def estimate(
    config: Annotated[Path, typer.Argument(metavar="FILE", help="The run's TOML file.")],
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated.")
    ] = None,
) -> None:
    """Print the tokens, GPU hours and dollars that a run will take, expected and at most; nothing is spent."""
    from trainwright.config import load_config
    from trainwright.estimate import estimate_run, table

    settings = load_config(config, change)
    for line in table(settings, estimate_run(settings)):
        print(line)


@app.command(epilog="Example: trainwright gate runs/nano/best-job --task reverse")
def gate(job: JobFolder, task: TaskName, config: Settings = None, unsafe_no_sandbox: Unsafe = False) -> None:
    """Check a job as a run would, without training; exit code 1 when it is refused."""
    from trainwright.single import gate_job, read_job, settings_of

    verdict = gate_job(read_job(job), task, unsafe_no_sandbox, settings_of(config))
    print(verdict)
    if not verdict.accepted:
        raise typer.Exit(1)


@app.command(epilog="Example: trainwright train runs/nano/best-job --task reverse:7")
def train(
    job: JobFolder,
    task: TaskName,
    seed: Annotated[int, typer.Option(help="The training seed.", min=0)] = 0,
    items: Annotated[int, typer.Option(help="Hidden items to score before and after.", min=8)] = 800,
    out: Annotated[Path | None, typer.Option(help="Write the trained weights (safetensors) to this file.")] = None,
    config: Settings = None,
    unsafe_no_sandbox: Unsafe = False,
) -> None:
    """Train one job and score the student before and after; exit code 1 when the job fails."""
    from trainwright.single import read_job, settings_of, train_job

    if not train_job(read_job(job), task, seed, items, out, unsafe_no_sandbox, settings_of(config)):
        raise typer.Exit(1)


@app.command(epilog="Example: trainwright families --suite nano")
def families(
    suite: Annotated[str, typer.Option(help="Only this suite.")] = "",
    reference: Annotated[
        str, typer.Option(metavar="FAMILY[:SEED]", help="Print this task's reference job instead.")
    ] = "",
    config: Settings = None,
) -> None:
    """List the installed task families with a drawn example, or print a family's reference job."""
    from trainwright.single import list_families, print_reference, settings_of

    if reference:
        print_reference(reference, settings_of(config))
    else:
        list_families(suite)


@app.command(epilog="Example: trainwright status runs/nano")
def status(folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")]) -> None:
    """Show how far a run is, its latest step and its numbers; safe while it works."""
    from trainwright.report.status import print_status

    print_status(folder)


@app.command(epilog="Example: trainwright serve smollm2-135m-instruct --adapter trained.safetensors --port 8000")
def serve(
    student: Annotated[str, typer.Argument(metavar="STUDENT", help="nano-64, qwen3-0.6b, hf:FOLDER, ...")],
    adapter: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Trained weights, served as the model STUDENT:adapter.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen at; there is no authentication.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8000,
) -> None:
    """Serve a student to OpenAI-compatible clients: chat completions, completions, models."""
    from trainwright.serve import serve_forever

    serve_forever(student, adapter.read_bytes() if adapter is not None else None, host, port)


@app.command(epilog="Example: trainwright doctor --json")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a page.")] = False,
) -> None:
    """Say what this machine can run: torch, GPU, memory, sandbox, extras, prime-rl, and which tier fits."""
    from trainwright.doctor import print_examination

    print_examination(as_json)


def main() -> None:
    """Run the command line; a user's mistake is one message on standard error and exit code 2."""
    try:
        app(prog_name="trainwright")
    except TrainwrightError as error:
        print(f"trainwright: {error}", file=sys.stderr)
        sys.exit(2)
    except InfraFault as error:
        print(f"trainwright: this machine failed, not the job: {error}", file=sys.stderr)
        sys.exit(3)
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"trainwright: {error.filename or 'this machine'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
