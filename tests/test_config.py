"""The configuration: what is valid, and one clear line for everything that is not."""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from trainwright.config import RunConfig, load_config, parse_config
from trainwright.errors import ConfigError

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.toml"))


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "run.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_an_empty_file_is_the_default_run(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "")) == RunConfig()


def test_values_are_read(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, 'folder = "x/y"\nsteps = 3\n[agent]\nlearning_rate = 2e-4\n'))
    assert (config.folder, config.steps, config.agent.learning_rate) == (Path("x/y"), 3, 2e-4)


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_examples_are_tables_that_name_known_settings(path: Path) -> None:
    table = tomllib.loads(path.read_text())
    if table.get("tasks", {}).get("suite", "nano") == "nano":
        assert load_config(path).folder == Path(table["folder"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps", "not valid TOML: .*end of document"),
        ("steps = = 1", "not valid TOML: .*line 1"),
        ("a = " + "[" * 20_000, "not valid TOML"),
        (b"folder = '\xff\xfe'", "not valid TOML: .*utf-8"),
        ("stepz = 3", "stepz: unknown key"),
        ("[agent]\nlearning-rate = 1", r"agent\.learning-rate: unknown key"),
        ("[agents]\nx = 1", "agents: unknown key"),
        ("steps = -1", "steps: .*greater than or equal to 0"),
        ("steps = 1.5", "steps: .*integer"),
        ('steps = "many"', "steps: .*integer"),
        ("steps = [1]", "steps: .*integer"),
        ("group_size = 1", "group_size: .*greater than or equal to 2"),
        ("[agent]\nlearning_rate = nan", r"agent\.learning_rate: .*finite"),
        ("[agent]\nlearning_rate = inf", r"agent\.learning_rate: .*(finite|less)"),
        ("[agent]\nlearning_rate = 0.0", r"agent\.learning_rate: .*greater than 0"),
        ("[pool]\njob_seconds = nan", r"pool\.job_seconds: .*finite"),
        ("[pool]\nbackend = 3", r"pool\.backend: .*string"),
        ("agent = 3", "agent: .*AgentConfig"),
        ('[tasks]\nheld_out = "shfit"', "held_out = 'shfit' is not a family of the suite.*: .*shift"),
        ('[tasks]\nsuite = "micro"', "unknown suite 'micro'; known: .*nano"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert re.search(message, said)
    assert "\n" not in said
    assert len(said) < len(str(path)) + 250


def test_every_wrong_key_has_its_own_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, "stepz = 3\ngroups = 0\n"))
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert any("stepz" in line for line in lines)
    assert any("groups" in line for line in lines)


def test_paths_that_are_no_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: no such file"):
        load_config(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="is a folder"):
        load_config(tmp_path)
    with pytest.raises(ConfigError, match="can't be read"):
        load_config(written(tmp_path, "") / "below-a-file")


@pytest.mark.parametrize(
    ("override", "table", "key", "value"),
    [
        ("seed=3", None, "seed", 3),
        (" seed = 3", None, "seed", 3),
        ("agent.learning_rate=1e-4", "agent", "learning_rate", 1e-4),
        ("agent.learning_rate=1", "agent", "learning_rate", 1.0),
        ("tasks.held_out=sort", "tasks", "held_out", "sort"),
        ('tasks.held_out="sort"', "tasks", "held_out", "sort"),
        ("tasks.held_out=", "tasks", "held_out", ""),
        ("pool.unsafe_no_sandbox=true", "pool", "unsafe_no_sandbox", True),
        ("folder=runs/a=b c", None, "folder", Path("runs/a=b c")),
    ],
)
def test_set_changes_one_value(tmp_path: Path, override: str, table: str | None, key: str, value: object) -> None:
    config = load_config(written(tmp_path, "steps = 5\n[agent]\nepochs = 3\n"), [override])
    assert getattr(getattr(config, table) if table else config, key) == value
    assert (config.steps, config.agent.epochs) == (5, 3)


def test_the_last_set_wins(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "seed = 1"), ["seed=2", "seed=3"]).seed == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "--set seed: write it as table.key=value"),
        ("=3", "--set =3: write it as table.key=value"),
        ("seed.x=3", "--set seed.x=3: seed is a value, not a table"),
        ("agent.x=3", r"agent\.x: unknown key"),
        ("seed=nan", "seed: .*(integer|finite)"),
        ("seed=two", "seed: .*integer"),
        ("agent..epochs=2", "unknown key"),
    ],
)
def test_a_wrong_set_is_named_in_one_line(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(written(tmp_path, "seed = 1"), [override])
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_set_gives_a_configuration_or_a_config_error(text: str) -> None:
    path = Path(__file__).parents[1] / "examples" / "nano.toml"
    with suppress(ConfigError):
        load_config(path, [text])


def test_a_resolved_configuration_reads_back(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, "seed = 7\n[probe]\nepisodes = 3\n"))
    table = json.loads(config.model_dump_json(exclude_none=True))
    assert load_config(written(tmp_path, tomli_w.dumps(table))) == config


def test_every_setting_has_a_description() -> None:
    def undescribed(schema: dict[str, object], definitions: dict[str, object], prefix: str = "") -> list[str]:
        names = []
        for name, field in schema["properties"].items():  # type: ignore[attr-defined]
            if "$ref" in field:
                inner = definitions[field["$ref"].rpartition("/")[2]]
                names += undescribed(inner, definitions, f"{prefix}{name}.")  # type: ignore[arg-type]
            elif not field.get("description"):
                names.append(prefix + name)
        return names

    schema = RunConfig.model_json_schema()
    assert undescribed(schema, schema["$defs"]) == []


def test_configurations_are_fixed_once_read() -> None:
    config = parse_config({}, "test")
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 1  # type: ignore[misc]
