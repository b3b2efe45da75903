"""What each command does, prints and exits with."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from typer.testing import Result

import lake
from lake.parts.kept import Kept

Run = Callable[..., Result]
Answer = Callable[..., Any]


def test_init_makes_a_lake_and_notes_where(folder: Path, run: Run, answer: Answer):
    """Other commands find it from there, also from a folder below; a second time changes nothing."""
    first = run("init", "./l", "--cache-budget", "1GB")
    written = (folder / "lake.toml").read_text()

    assert first.exit_code == 0
    assert run("init", "./l", "--cache-budget", "1GB").exit_code == 0
    assert (folder / "lake.toml").read_text() == written == 'url = "./l"\ncache_budget = "1GB"\n'
    assert answer("status") | {"cache": ""} == {
        "lake": str(folder / "l"),
        "set_by": str(folder / "lake.toml"),
        "state": "ready",
        "datasets": 0,
        "cache": "",
        "cache_used": 0,
        "cache_budget": 10**9,
    }


def test_init_writes_the_users_configuration_on_request(folder: Path, answer: Answer):
    """A relative folder is then written as it is from everywhere."""
    made = answer("init", "l", "--user")

    assert Path(made["configuration"]).name == "config.toml"
    assert not (folder / "lake.toml").exists()
    assert answer("status")["lake"] == str(folder / "l")


def test_init_without_arguments_writes_no_configuration(
    folder: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
):
    """What is configured elsewhere stays there."""
    monkeypatch.setenv("LAKE_URL", str(folder / "elsewhere"))

    assert answer("init") == {"lake": str(folder / "elsewhere"), "configuration": None}
    assert (folder / "elsewhere" / "lake.json").exists()
    assert not (folder / "lake.toml").exists()


def test_status_tells_why_there_is_no_lake(folder: Path, run: Run):
    """It prints what it knows, and the exit code is that of the trouble."""
    result = run("status", "--url", "./nowhere", "--json")

    assert (result.exit_code, json.loads(result.stdout)["state"]) == (7, "no lake")
    assert json.loads(result.stdout)["set_by"] == "argument"
    assert result.stderr.startswith("error: no lake at ")
    assert not (folder / "nowhere").exists()


def test_commit_prints_the_version_it_made(birds: Path, answer: Answer):
    """Committing the same again writes nothing, and prints the same version."""
    again = answer("commit", "birds", "--from", str(birds), "--meta", "license=CC0", "--meta", "n=20")

    assert again["name"] == "birds"
    assert (again["seq"], again["rows"]) == (1, 20)
    assert again["id"] == answer("info", "birds")["version"]


def test_commit_hands_every_option_on(birds: Path, answer: Answer, folder: Path):
    """Mode, key, txn, order, message, meta, recipe and shard size reach the library."""
    (folder / "recipe.json").write_text('{"step": [1, 2]}')
    options = ["--mode", "append", "--txn", "t1", "-m", "more", "--meta", "a=[1]", "--meta", "b=x=y"]
    more = ["--recipe", "recipe.json", "--key", "key", "--order", "shuffled", "--shard-bytes", "1MiB"]

    first = answer("commit", "birds", "--from", "birds.csv", *options, *more)
    second = answer("commit", "birds", "--from", "birds.csv", *options, *more)

    assert first["rows"] == 40
    assert second["id"] == first["id"]
    info = answer("info", "birds")
    assert (info["meta"], info["recipe"], info["key"]) == ({"a": [1], "b": "x=y"}, {"step": [1, 2]}, "key")
    entry = answer("log", "birds")[0]
    assert (entry["operation"], entry["message"], entry["txn"]) == ("append", "more", "t1")
    assert answer("commit", "bare", "--from", "birds.csv", "--no-key")["rows"] == 20
    assert answer("info", "bare")["key"] is None


def test_commit_reads_a_folder_of_classes(folder: Path, answer: Answer, birds: Path):
    """--labels makes the first directory the class."""
    for name in ("cat/1.png", "dog/2.png"):
        path = folder / "pets" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\x89PNG" + name.encode())

    answer("commit", "pets", "--from", "pets", "--labels")

    assert sorted(column["column"] for column in answer("info", "pets")["columns"]) == [
        "image",
        "key",
        "label",
    ]


def test_ls_and_info_tell_what_is_there(birds: Path, run: Run, answer: Answer):
    """Tables for people, the same in JSON with every member."""
    [row] = answer("ls")
    info = answer("info", "birds@#1")

    assert (row["dataset"], row["rows"], row["seq"], row["key"]) == ("birds", 20, 1, "key")
    assert row["version"] == info["version"]
    assert [(c["column"], c["type"]) for c in info["columns"]] == [
        ("key", "large_string"),
        ("x", "int64"),
        ("label", "large_string"),
    ]
    assert info["meta"] == {"license": "CC0", "n": 20}
    header, line = run("ls").stdout.splitlines()
    assert header.split() == ["dataset", "rows", "shards", "bytes", "seq", "version", "time"]
    assert line.split()[:3] == ["birds", "20", "1"]
    assert "large_string" in run("info", "birds").stdout


def test_head_prints_the_first_rows(birds: Path, run: Run, answer: Answer):
    """As many as asked for, or as there are."""
    assert [row["x"] for row in answer("head", "birds", "-n", "3")] == [0, 1, 2]
    assert len(answer("head", "birds")) == 10
    assert len(answer("head", "birds", "--rows", "50")) == 20
    assert answer("head", "birds", "-n", "0") == []
    assert run("head", "birds", "-n", "1").stdout == "key  x  label\nk00  0  a\n"


def test_log_is_newest_first(birds: Path, run: Run, answer: Answer):
    """-n keeps the newest, and says how many there are more."""
    answer("commit", "birds", "--from", "birds.csv", "--mode", "append", "-m", "second")

    assert [entry["message"] for entry in answer("log", "birds")] == ["second", "first"]
    short = run("log", "birds", "-n", "1")
    assert "second" in short.stdout
    assert "first" not in short.stdout
    assert short.stderr == "1 older entries\n"


def test_sql_answers_in_three_forms(birds: Path, run: Run, answer: Answer):
    """A table, CSV and JSON of the same rows."""
    query = "select label, count(*) as n, [min(x)] as low from birds group by label order by label"

    assert run("sql", query).stdout == "label   n  low\na      10  [0]\nb      10  [1]\n"
    assert run("sql", query, "--format", "csv").stdout == "label,n,low\na,10,[0]\nb,10,[1]\n"
    expected = [{"label": "a", "n": 10, "low": [0]}, {"label": "b", "n": 10, "low": [1]}]
    assert json.loads(run("sql", query, "--format", "json").stdout) == expected == answer("sql", query)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "json"])
def test_sql_writes_a_new_file_and_no_other(birds: Path, run: Run, suffix: str, tmp_path: Path):
    """The file that is named, in the format that its suffix says; what is there already stays."""
    path = tmp_path / f"answer.{suffix}"
    query = "select label, count(*) as n from birds group by label order by label"
    before = set(tmp_path.iterdir())

    assert run("sql", query, "--output", str(path)).stdout == ""
    assert set(tmp_path.iterdir()) - before == {path}
    rows = {
        "parquet": lambda: pq.read_table(path).to_pylist(),
        "arrow": lambda: pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist(),
        "csv": lambda: pacsv.read_csv(path).to_pylist(),
        "json": lambda: json.loads(path.read_text()),
    }[suffix]()
    assert rows == [{"label": "a", "n": 10}, {"label": "b", "n": 10}]

    again = run("sql", query, "-o", str(path))
    assert (again.exit_code, "exists" in again.stderr) == (1, True)
    failed = run("sql", "select error('boom')", "-o", str(tmp_path / f"no.{suffix}"))
    assert failed.exit_code == 1
    assert set(tmp_path.iterdir()) - before == {path}


def test_sql_prints_odd_values_so_that_they_can_be_read_back(birds: Path, run: Run, answer: Answer):
    """Line breaks, quotes, bytes, NaN, null, times, decimals; also columns of one name."""
    query = (
        "select 'a\nb,\"c' as s, 'xy'::blob as b, 'nan'::double as f, null as n, true as t, 1.50 as d, "
        "timestamptz '2026-01-02 03:04:05Z' as z, {'k': [date '2026-01-02']} as o"
    )

    assert answer("sql", query) == [
        {
            "s": 'a\nb,"c',
            "b": "eHk=",
            "f": None,
            "n": None,
            "t": True,
            "d": "1.50",
            "z": "2026-01-02T03:04:05+00:00",
            "o": {"k": ["2026-01-02"]},
        }
    ]
    _, values = csv.reader(io.StringIO(run("sql", query, "--format", "csv").stdout))
    assert values == [
        'a\nb,"c',
        "eHk=",
        "nan",
        "",
        "true",
        "1.50",
        "2026-01-02T03:04:05+00:00",
        '{"k": ["2026-01-02"]}',
    ]
    assert len(run("sql", query).stdout.splitlines()) == 2
    assert run("sql", "select 1 as a, 2 as a").stdout.split()[2:] == ["1", "2"]


def test_sql_runs_queries_by_name(birds: Path, run: Run, answer: Answer):
    """--list tells which; parameters are given by name."""
    listed = answer("sql", "--list")

    assert {"query": "@history", "parameters": "dataset"}.items() <= listed[
        [q["query"] for q in listed].index("@history")
    ].items()
    assert [row["message"] for row in answer("sql", "@history", "-p", "dataset=birds")] == ["first"]
    assert answer("sql", "select x from birds where key = $k", "-p", "k=k03") == [{"x": 3}]
    assert "nearest: 'history'" in run("sql", "@histry").stderr


def test_a_table_on_a_terminal_is_framed(
    birds: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Text is shown as it is, never taken for markup; long cells are cut."""
    from lake.cli import output

    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    output.print_rows([{"a": "[red]x[/red]", "b": "y" * 100}], ["a", "b"])
    shown = capsys.readouterr().out

    assert "╭" in shown
    assert "[red]x[/red]" in shown
    assert "y" * 59 + "…" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["head", "brids"], 7, "no dataset 'brids'"),
        (["head", "brids"], 7, "nearest: 'birds'"),
        (["info", "birds@#9"], 7, "goes from #1 to #1"),
        (["log", "brids"], 7, "no dataset 'brids'"),
        (["sql", "from brids"], 7, "nearest: 'birds'"),
        (["sql", "from lake.shrads"], 7, "nearest: 'shards'"),
        (["sql", "@nothing"], 7, "no query 'nothing'"),
        (["sql", "selec 1"], 2, 'syntax error at or near "selec"'),
        (["sql", "drop view lake.log"], 2, "DROP is refused"),
        (["sql", "select error('boom')"], 1, "boom"),
        (["sql"], 2, "a query is needed"),
        (["sql", "select $x", "-p", "x"], 2, "write K=V"),
        (["sql", "select 1", "--format", "xml"], 2, "xml"),
        (["commit", "birds"], 2, "--from"),
        (["commit", "a b", "--from", "birds.csv"], 2, "dataset name 'a b'"),
        (["commit", "birds", "--from", "nowhere.csv"], 7, "nowhere.csv"),
        (["commit", "birds", "--from", "birds.csv", "--txn", "t"], 2, "mode='append'"),
        (["commit", "birds", "--from", "birds.csv", "--meta", "k"], 2, "write K=V"),
        (["commit", "birds", "--from", "birds.csv", "--key", "k", "--no-key"], 2, "exclude each other"),
        (["commit", "birds", "--from", "birds.csv", "--mode", "replace"], 2, "replace"),
        (["commit", "birds", "--from", "birds.csv", "--key", "nokey"], 1, "nokey"),
        (["commit", "birds", "--from", "birds.csv", "--recipe", "none.json"], 7, "none.json"),
        (["ls", "--url", "./nowhere"], 7, "no lake at"),
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["--nonsense"], 2, "No such option: --nonsense"),
        (["head", "birds", "-n", "-1"], 2, "-n"),
    ],
)
def test_an_error_is_one_line_on_stderr_and_an_exit_code(
    birds: Path, run: Run, arguments: list[str], code: int, message: str
):
    """Nothing on stdout, no traceback, the code says what kind."""
    result = run(*arguments)

    assert result.exit_code == code, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_damage_is_its_own_exit_code(birds: Path, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Also when DuckDB met it first, which passes on only a text."""
    monkeypatch.setattr("lake.parts.reader._recent", Kept(0))  # a command is a process of its own
    [part] = (folder / "l" / "shards").rglob("*.arrow")
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.chmod(0o644)
    part.write_bytes(data)

    for arguments in (["head", "birds"], ["sql", "select sum(x), max(key), max(label) from birds"]):
        result = run(*arguments)
        assert result.exit_code == 3, result.stderr
        assert result.stderr.count("\n") == 1


ERRORS = [
    (lake.IntegrityError("x"), 3),
    (lake.ConflictError("x"), 4),
    (lake.CommitStateUnknown("x", txn="t"), 5),
    (lake.StoreError("x", retryable=True), 5),
    pytest.param(lake.StoreError("x"), 1, id="StoreError, not retryable"),
    (lake.BudgetError("x", needed=2, budget=1), 6),
    (lake.NotFoundError("x"), 7),
    (lake.VersionExpired("x"), 7),
    (lake.SchemaError("x"), 1),
    (lake.FormatError("x"), 1),
    (lake.ConfigError("x"), 2),
    (ValueError("x"), 2),
    (FileNotFoundError("x"), 7),
    (RuntimeError("x"), 1),
]


@pytest.mark.parametrize(
    ("error", "code"), ERRORS, ids=lambda each: str(getattr(type(each), "__name__", each))
)
def test_every_error_has_its_exit_code(
    error: Exception, code: int, run: Run, monkeypatch: pytest.MonkeyPatch
):
    """Whatever a call raises becomes one line."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("lake.repo.Lake.log", refuse)
    result = run("log", "birds")

    assert (result.exit_code, result.stderr.count("\n")) == (code, 1)
    assert result.stderr.startswith("error: ")


def test_an_interrupt_is_one_line_too(run: Run, monkeypatch: pytest.MonkeyPatch):
    """130, as a shell expects."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lake.repo.Lake.log", interrupt)

    assert run("log", "birds").exit_code == 130


def test_without_arguments_the_help_is_shown(run: Run):
    """It is usage, and not an error."""
    result = run()

    assert result.exit_code == 2
    assert "Exit codes: 0 done" in result.stdout
    assert result.stderr == ""
