"""Settings come from the first place that has them, and every message names the place."""

from __future__ import annotations

import os
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.config import (
    format_bytes,
    parse_bytes,
    parse_duration,
    resolve,
    user_config,
    write_config,
)
from lake.errors import ConfigError

NAMES = ("url", "cache_dir", "cache_budget", "endpoint_url", "region", "anonymous")


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, home and environment: whatever is found, a test has put there."""
    for name in [name for name in os.environ if name.startswith(("LAKE_", "R2_", "XDG_"))]:
        monkeypatch.delenv(name)
    home, here = tmp_path / "home", tmp_path / "work" / "deep"
    home.mkdir()
    here.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    return here


# sizes


@given(st.integers(0, 2**63), st.sampled_from(["", "B", "kB", "KB", "MB", "GiB", "tib", "PB"]))
def test_a_size_is_its_number_times_its_unit(number: int, unit: str) -> None:
    """Decimal units are powers of 1000, "i" units of 1024; neither case nor a space matters."""
    power = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}[unit[:1].lower()]
    base = 1024 if "i" in unit.lower() else 1000

    assert parse_bytes(f"{number}{unit}") == parse_bytes(f" {number} {unit} ") == number * base**power


@given(st.integers(0, 10**6), st.integers(0, 999_999))
def test_fractions_of_a_unit_are_exact(whole: int, millionths: int) -> None:
    """No binary floating point rounds a size."""
    assert parse_bytes(f"{whole}.{millionths:06} MB") == whole * 10**6 + millionths


@given(st.integers(0, 999 * 10**15))
def test_a_shown_size_reads_back_as_nearly_itself(size: int) -> None:
    """Two digits or more survive, in at most three before the unit."""
    shown = format_bytes(size)
    back = parse_bytes(shown)

    assert back is not None
    assert abs(back - size) <= 0.05 * size
    assert len(shown.split()[0]) <= 3


@given(st.integers(1, 999), st.sampled_from(["B", "MB", "TB"]))
def test_whole_units_are_shown_exactly(number: int, unit: str) -> None:
    """What a person wrote is what a message repeats."""
    assert parse_bytes(format_bytes(parse_bytes(f"{number}{unit}"))) == parse_bytes(f"{number}{unit}")


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (9_949_999, "9.9 MB"),
        (9_950_000, "10 MB"),
        (2 * 10**12, "2.0 TB"),
        (None, "unlimited"),
    ],
)
def test_sizes_around_a_change_of_unit_read_well(size: int | None, shown: str) -> None:
    """Nothing is ever shown as 1000 of a unit, or as 10.0."""
    assert format_bytes(size) == shown


def test_unlimited_is_no_number() -> None:
    """The word stands for None, in any case."""
    assert parse_bytes("Unlimited") is None


@pytest.mark.parametrize(
    "size", ["", "GB", "-1", "1e9", "64 MiBs", "1.MB", ".5MB", "1,5GB", "64M", "nan", "٣MB"]
)
def test_a_text_that_is_no_size_is_refused_with_examples(size: str) -> None:
    """The message repeats the text and shows how one is written."""
    with pytest.raises(ValueError, match="64MiB") as caught:
        parse_bytes(size)
    assert repr(size) in str(caught.value)


@pytest.mark.parametrize("size", [True, 1.5, None, b"1"])
def test_only_ints_and_texts_are_sizes(size: object) -> None:
    """A float or a bool is a slip, not a size."""
    with pytest.raises(TypeError):
        parse_bytes(size)  # type: ignore[arg-type]


def test_a_negative_size_is_refused() -> None:
    """Also as a number."""
    with pytest.raises(ValueError, match="-1"):
        parse_bytes(-1)


# durations


@given(st.integers(0, 10**6), st.sampled_from(["ms", "s", "m", "h", "d", "w"]))
def test_a_duration_is_its_number_times_its_unit(number: int, unit: str) -> None:
    """Units mean what the standard library's timedelta says."""
    words = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
    span = timedelta(**{words[unit]: number})

    assert parse_duration(f"{number}{unit}") == pytest.approx(span.total_seconds(), rel=1e-12)
    assert parse_duration(span) == span.total_seconds() == parse_duration(span.total_seconds())


@pytest.mark.parametrize("duration", ["", "7", "d", "-1s", "7 days", "1h30m", -1, float("nan"), float("inf")])
def test_what_is_no_duration_is_refused(duration: str | float) -> None:
    """A text needs its unit: seven of what?"""
    with pytest.raises(ValueError, match="duration"):
        parse_duration(duration)


@pytest.mark.parametrize("duration", [True, None, b"1s"])
def test_only_numbers_texts_and_timedeltas_are_durations(duration: object) -> None:
    """Anything else is a slip."""
    with pytest.raises(TypeError):
        parse_duration(duration)  # type: ignore[arg-type]


# where a setting comes from


def places(here: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """Ways to set a region, from the weakest to the strongest: the source's name and the setter."""
    user, project = user_config(), here.parent / "lake.toml"
    user.parent.mkdir(parents=True)
    return [
        ("R2_ACCOUNT_ID", lambda: monkeypatch.setenv("R2_ACCOUNT_ID", "0")),
        (str(user), lambda: user.write_text('region = "user"')),
        (str(project), lambda: project.write_text('region = "project"')),
        ("LAKE_REGION", lambda: monkeypatch.setenv("LAKE_REGION", "env")),
    ]


def test_every_place_beats_those_below_it(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Argument, environment, lake.toml, the user's file, R2's account, default: the first one wins."""
    assert (resolve().region, resolve().sources["region"]) == (None, "default")

    found = []
    for source, put in places(nowhere, monkeypatch):
        put()  # type: ignore[operator]
        settings = resolve()
        assert settings.sources["region"] == source
        found.append(settings.region)

    assert found == ["auto", "user", "project", "env"]
    assert resolve(region="argument").region == "argument"
    assert resolve(region="argument").sources["region"] == "argument"


def test_settings_are_found_one_by_one(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that sets one thing leaves the others to the places below."""
    (nowhere / "lake.toml").write_text('url = "s3://bucket/lake"\ncache_budget = "60GB"\n')
    monkeypatch.setenv("LAKE_CACHE_BUDGET", "unlimited")
    monkeypatch.setenv("LAKE_ANONYMOUS", "yes")

    settings = resolve(endpoint_url="http://127.0.0.1:9000")

    assert settings.url == "s3://bucket/lake"
    assert settings.cache_budget is None
    assert settings.anonymous is True
    assert settings.endpoint_url == "http://127.0.0.1:9000"
    assert settings.sources == {
        "url": str(nowhere / "lake.toml"),
        "cache_dir": "default",
        "cache_budget": "LAKE_CACHE_BUDGET",
        "endpoint_url": "argument",
        "region": "default",
        "anonymous": "LAKE_ANONYMOUS",
    }


def test_without_any_place_the_defaults_hold(nowhere: Path) -> None:
    """Lake and cache lie under the home directory, the budget is the cache's choice; nothing is created."""
    settings = resolve()

    assert Path(settings.url).is_relative_to(Path.home())
    assert settings.cache_dir.is_relative_to(Path.home())
    assert settings.cache_budget == "auto"
    assert (settings.endpoint_url, settings.region, settings.anonymous) == (None, None, False)
    assert set(settings.sources.values()) == {"default"}
    assert list(Path.home().iterdir()) == []


def test_a_relative_path_in_a_file_is_relative_to_the_file(nowhere: Path) -> None:
    """So a lake.toml means the same in every subfolder; "~" is the home directory."""
    (nowhere.parent / "lake.toml").write_text('url = "./mylake"\ncache_dir = "~/cache"\n')

    assert Path(resolve().url) == nowhere.parent / "mylake"
    assert resolve().cache_dir == Path.home() / "cache"


def test_a_relative_path_given_by_hand_is_the_callers(nowhere: Path) -> None:
    """An argument or a variable means the working directory, as in any other program."""
    assert resolve("./mylake").url == "./mylake"
    assert resolve(cache_dir="cache").cache_dir == nowhere / "cache"
    assert resolve(Path("mylake")).url == "mylake"


def test_an_r2_account_gives_endpoint_and_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """R2_ACCOUNT_ID is enough for Cloudflare; an endpoint of one's own wins."""
    monkeypatch.setenv("R2_ACCOUNT_ID", "abc123")

    assert resolve().endpoint_url == "https://abc123.r2.cloudflarestorage.com"
    assert resolve().region == "auto"
    assert resolve(endpoint_url="http://127.0.0.1:1").endpoint_url == "http://127.0.0.1:1"


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """`LAKE_REGION= lake ls` switches the variable off."""
    monkeypatch.setenv("LAKE_REGION", "")

    assert resolve().sources["region"] == "default"


# messages


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache_budget", "many"),
        ("endpoint_url", "localhost:9000"),
        ("anonymous", "maybe"),
        ("url", "s3://key:secret@bucket/lake"),
    ],
)
def test_a_value_that_cannot_be_used_names_setting_and_place(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """From a variable and from a file alike; nothing that looks like a secret is repeated."""
    monkeypatch.setenv(f"LAKE_{name.upper()}", value)
    with pytest.raises(ConfigError, match=f"{name}.*LAKE_{name.upper()}") as from_variable:
        resolve()
    monkeypatch.delenv(f"LAKE_{name.upper()}")
    (nowhere / "lake.toml").write_text(f'{name} = "{value}"')
    with pytest.raises(ConfigError, match=f"{name}.*lake.toml") as from_file:
        resolve()

    assert "secret" not in str(from_variable.value) + str(from_file.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_of_the_wrong_type_is_a_config_error(nowhere: Path, name: str) -> None:
    """Never a TypeError from somewhere inside."""
    (nowhere / "lake.toml").write_text(f"{name} = [1]")

    with pytest.raises(ConfigError, match=name):
        resolve()


def test_a_misspelt_key_is_named_with_the_nearest_known_one(nowhere: Path) -> None:
    """A setting that is silently ignored costs an afternoon."""
    (nowhere / "lake.toml").write_text('cache_budgt = "60GB"')

    with pytest.raises(ConfigError, match=r"lake\.toml.*'cache_budgt'.*'cache_budget'"):
        resolve()


def test_credentials_in_a_file_are_refused_unrepeated(nowhere: Path) -> None:
    """The message points to the AWS chain."""
    (nowhere / "lake.toml").write_text('aws_secret_access_key = "hunter2"')

    with pytest.raises(ConfigError, match="AWS chain") as caught:
        resolve()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("content", [b"url = ", b"\xff\xfe", b"url = 'a'\nurl = 'b'"])
def test_a_broken_file_is_named(nowhere: Path, content: bytes) -> None:
    """TOML errors and encodings alike."""
    (nowhere / "lake.toml").write_bytes(content)

    with pytest.raises(ConfigError, match=r"lake\.toml"):
        resolve()


# writing

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1)


@given(
    region=texts,
    budget=st.integers(0, 2**62) | st.sampled_from(["auto", "unlimited", "60GB"]),
    anonymous=st.booleans(),
)
def test_what_is_written_is_what_resolves(
    tmp_path_factory: pytest.TempPathFactory, region: str, budget: int | str, anonymous: bool
) -> None:
    """Any text survives TOML, and a second writing changes only what it names."""
    path = tmp_path_factory.mktemp("c") / "deep" / "lake.toml"
    write_config(path, url="s3://bucket/lake", region=region, cache_budget=budget)
    write_config(path, anonymous=anonymous, region=None)

    assert tomllib.loads(path.read_text("utf-8")) == {
        "url": "s3://bucket/lake",
        "region": region,
        "cache_budget": budget,
        "anonymous": anonymous,
    }
    assert [p.name for p in path.parent.iterdir()] == ["lake.toml"]


def test_writing_keeps_the_files_comments(nowhere: Path) -> None:
    """A person's notes are theirs."""
    path = nowhere / "lake.toml"
    path.write_text('# ours\nurl = "a"  # old\n\n# the budget\ncache_budget = "1GB"\n')

    write_config(path, url="b", region="eu-west-1")

    assert path.read_text() == (
        '# ours\nurl = "b"\n\n# the budget\ncache_budget = "1GB"\nregion = "eu-west-1"\n'
    )


def test_a_file_that_cannot_be_edited_safely_is_left_alone(nowhere: Path) -> None:
    """A value over several lines is not torn apart."""
    path = nowhere / "lake.toml"
    path.write_text('url = """\nb\nregion = 1"""\n')
    before = path.read_bytes()

    with pytest.raises(ConfigError, match="by hand"):
        write_config(path, url="s3://bucket/lake", region="x")
    assert path.read_bytes() == before


@pytest.mark.parametrize("wrong", [{"cache_budget": "many"}, {"colour": "red"}, {"secret_key": "x"}])
def test_nothing_unusable_is_written(nowhere: Path, wrong: dict[str, str]) -> None:
    """The file is not even created."""
    with pytest.raises(ConfigError):
        write_config(nowhere / "lake.toml", **wrong)
    assert list(nowhere.iterdir()) == []


def test_each_setting_comes_from_the_nearest_file_that_has_it(nowhere: Path) -> None:
    """A file below one that says more hides no more than what it says itself."""
    write_config(nowhere.parent / "lake.toml", url="./l", cache_budget="1GB")
    write_config(nowhere / "lake.toml", cache_dir="./c", cache_budget="2GB")

    found = resolve()

    assert (found.url, found.cache_dir) == (str(nowhere.parent / "l"), nowhere / "c")
    assert found.cache_budget == 2 * 10**9
    assert found.sources["url"] == str(nowhere.parent / "lake.toml")
    assert found.sources["cache_budget"] == str(nowhere / "lake.toml")


@pytest.mark.parametrize("place", ["project", "above", "user"])
def test_a_folder_in_place_of_a_file_is_said(nowhere: Path, place: str) -> None:
    """It is not passed over: somebody expects its settings to count."""
    path = {"project": nowhere / "lake.toml", "above": nowhere.parent / "lake.toml", "user": user_config()}[
        place
    ]
    path.mkdir(parents=True)

    with pytest.raises(ConfigError, match="is a folder") as caught:
        resolve()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_of_another_type_is_named_with_its_place(nowhere: Path, name: str) -> None:
    """In words of the setting, not of Python's."""
    (nowhere / "lake.toml").write_text(f"{name} = [5]\n")

    with pytest.raises(ConfigError) as caught:
        resolve()
    assert str(caught.value).startswith(f"{name} (set by {nowhere / 'lake.toml'}): ")
    assert "PathLike" not in str(caught.value)


@pytest.mark.parametrize("value", ["no", "false", 0, None])
def test_anonymous_is_a_bool(value: object) -> None:
    """ "no" is true in Python, and would be read as false here: neither is meant to be guessed."""
    with pytest.raises(TypeError, match="anonymous"):
        resolve(anonymous=value)  # type: ignore[arg-type]
