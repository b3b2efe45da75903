"""What the commands that bring data somewhere, and those about this machine, do and print."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from typer.testing import Result

Run = Callable[..., Result]
Answer = Callable[..., Any]


def test_compact_makes_one_shard_of_many_appends(birds: Path, run: Run, answer: Answer):
    """Rows stay; the log says who did it."""
    for _ in range(3):
        answer("commit", "birds", "--from", birds, "--mode", "append")

    made = answer("compact", "birds", "-m", "tidy")

    assert (made["shards"], made["rows"]) == (1, 80)
    assert [answer("log", "birds")[0][name] for name in ("operation", "message")] == ["compact", "tidy"]


def test_export_writes_files_of_the_format_asked_for(birds: Path, run: Run, answer: Answer, folder: Path):
    """By the path's ending, or --format; only the columns asked for; never over what is there."""
    made = answer("export", "birds", "out.parquet")
    answer("export", "birds", "parts", "--format", "jsonl", "-c", "key", "--column", "x")

    assert (made["rows"], made["path"]) == (20, "out.parquet")
    assert pq.read_table(folder / "out.parquet")["x"].to_pylist() == list(range(20))
    lines = (folder / "parts" / "part-00000.jsonl").read_text().splitlines()
    assert json.loads(lines[3]) == {"key": "k03", "x": 3}
    again = run("export", "birds", "out.parquet")
    assert (again.exit_code, "exists: remove it" in again.stderr) == (1, True)
    assert run("export", "birds", "out.csv", "--format", "parquet").exit_code == 2


def test_pull_tells_how_much_it_fetched(birds: Path, answer: Answer):
    """Nothing, of a lake in a folder."""
    found = answer("pull", "birds", "-c", "label")

    assert (found["name"], found["bytes_fetched"]) == ("birds", 0)
    assert found["bytes"] == answer("info", "birds")["bytes"]


def test_pull_fills_the_cache_which_clear_empties(birds: Path, run: Run, answer: Answer, s3_url: str):
    """From a bucket every byte comes once; what the budget does not hold is refused."""
    answer("commit", "birds", "--from", birds, "--url", s3_url)
    size = answer("info", "birds", "--url", s3_url)["bytes"]

    assert answer("pull", "birds", "--url", s3_url)["bytes_fetched"] == size
    assert answer("pull", "birds", "--url", s3_url)["bytes_fetched"] == 0
    held = answer("cache", "--url", s3_url)
    assert held["cache_used"] >= size
    assert held["files"] >= 1
    freed = answer("cache", "clear", "--url", s3_url)
    assert (freed["freed_bytes"], freed["cache_used"], freed["files"]) == (held["cache_used"], 0, 0)
    assert run("cache", "shrink").exit_code == 2


def test_plan_shows_the_numbers_before_anything_is_read(birds: Path, run: Run, answer: Answer):
    """With the time that fetching takes at a given bandwidth."""
    found = answer("plan", "birds", "--batch-size", "8", "--bandwidth", "1kB/s")

    assert (found["batches"], found["rows"], found["shards"]) == (3, 20, 1)
    assert found["fetch_seconds"] == found["fetch_bytes"] / 1000
    assert (
        answer("plan", "birds", "--batch-size", "8", "--world-size", "2", "--shuffle", "true")["batches"] == 2
    )
    assert answer("plan", "birds", "--where", "x < 5", "-c", "x")["rows"] == 5
    assert run("plan", "birds", "--bandwidth", "fast").exit_code == 2
    assert run("plan", "birds", "--budget", "10B").exit_code == 6
    assert (
        "fetch_bytes" in run("plan", "birds", "--shuffle", "full", "--window", "3", "--budget", "1GB").stdout
    )


def test_config_shows_where_each_setting_comes_from(birds: Path, run: Run, answer: Answer, folder: Path):
    """And writes one into the nearest lake.toml, or the user's file."""
    shown = {row["setting"]: row for row in answer("config")}

    assert shown["url"] == {"setting": "url", "value": str(folder / "l"), "set_by": str(folder / "lake.toml")}
    assert shown["cache_budget"] == {"setting": "cache_budget", "value": "auto", "set_by": "default"}
    below = folder / "below"
    below.mkdir()
    made = answer("config", "set", "cache_budget", "2GB")
    assert made["configuration"] == str(folder / "lake.toml")
    assert {row["setting"]: row["value"] for row in answer("config")}["cache_budget"] == 2 * 10**9
    answer("config", "set", "region", "eu-west-1", "--user")
    [region] = [row for row in answer("config") if row["setting"] == "region"]
    assert (region["value"], Path(region["set_by"]).name) == ("eu-west-1", "config.toml")


def test_config_refuses_what_cannot_be_set(folder: Path, run: Run):
    """Unknown names, impossible values, secrets; and half a command."""
    for arguments, code, message in (
        (["set", "cache_bugdet", "1GB"], 2, "did you mean 'cache_budget'"),
        (["set", "cache_budget", "much"], 2, "cache_budget"),
        (["set", "aws_secret_access_key", "x"], 2, "never kept"),
        (["set", "url"], 2, "config set SETTING VALUE"),
        (["show", "url"], 2, "shows all settings"),
    ):
        result = run("config", *arguments)
        assert (result.exit_code, message in result.stderr) == (code, True), result.stderr
    assert not (folder / "lake.toml").exists()
