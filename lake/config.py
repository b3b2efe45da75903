"""Settings and the units they are written in; for each setting, where its value came from.

Looks at arguments, the environment and two TOML files, in this order, and creates nothing but the file
that `write_config` is asked for. Credentials are never read, kept or written here: they belong to the
standard AWS chain, and a URL that carries some is refused without being repeated.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import platformdirs

from lake.errors import ConfigError

CONFIG_NAME: Final = "lake.toml"

_DECIMAL: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_BYTES: Final = {unit.lower(): 1000**power for power, unit in enumerate(_DECIMAL)} | {
    unit.lower(): 1024**power for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB", "PiB"), start=1)
}
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)

Budget = (
    int | None | Literal["auto"]
)  # bytes; None: unlimited; "auto": half of (free disk + the cache itself)


def parse_bytes(size: int | str) -> int | None:
    """Bytes: 67108864 of "64MiB", 60 * 10**9 of "60 GB"; None of "unlimited".

    Units ending in "iB" are powers of 1024, the others of 1000; a number alone is bytes.

    >>> parse_bytes("1.5 kB"), parse_bytes("64MiB"), parse_bytes("unlimited")
    (1500, 67108864, None)

    Raises:
        ValueError: not a size, or less than nothing.
    """
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f"a size is an int or a text such as '64MiB', not {type(size).__name__}")
    if isinstance(size, int):
        if size < 0:
            raise ValueError(f"a size cannot be negative: {size}")
        return size
    text = size.strip()
    if text.lower() == "unlimited":
        return None
    match = _QUANTITY.fullmatch(text)
    factor = match and _BYTES.get(match[2].lower() or "b")
    if not match or not factor:
        raise ValueError(f"{size!r} is not a size: write e.g. '64MiB', '60GB' or 'unlimited'")
    return int(Fraction(match[1]) * factor)


def format_bytes(size: int | None) -> str:
    """The size as a person reads it, two digits or more: "999 B", "1.2 GB", "60 GB"; None is "unlimited".

    >>> format_bytes(1_200_000_000), format_bytes(60_000_000_000), format_bytes(17)
    ('1.2 GB', '60 GB', '17 B')
    """
    if size is None:
        return "unlimited"
    power = 0
    while power + 1 < len(_DECIMAL) and _rounded(size, 1000**power) >= 1000:
        power += 1
    tenths = _rounded(10 * size, 1000**power)
    number = f"{tenths // 10}.{tenths % 10}" if power and tenths < 100 else _rounded(size, 1000**power)
    return f"{number} {_DECIMAL[power]}"


def _rounded(size: int, unit: int) -> int:
    return (2 * size + unit) // (2 * unit)


def parse_duration(duration: float | str | timedelta) -> float:
    """Seconds: 604800.0 of "7d", 0.25 of "250ms"; numbers are seconds already.

    >>> parse_duration("1.5h"), parse_duration("2s"), parse_duration(3)
    (5400.0, 2.0, 3.0)

    Raises:
        ValueError: not a duration, or less than nothing.
    """
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, int | float | str):
        raise TypeError(
            f"a duration is a number of seconds or a text such as '7d', not {type(duration).__name__}"
        )
    if isinstance(duration, str):
        match = _QUANTITY.fullmatch(duration.strip())
        factor = match and _SECONDS.get(match[2].lower())
        if not match or not factor:
            raise ValueError(f"{duration!r} is not a duration: write e.g. '250ms', '2s', '5m', '1h' or '7d'")
        return float(match[1]) * factor
    if not (math.isfinite(duration) and duration >= 0):
        raise ValueError(f"a duration is finite and not negative: {duration}")
    return float(duration)


@dataclass(frozen=True, slots=True)
class Settings:
    """What `resolve` found. `sources` names, for every other field, where it was set."""

    url: str
    cache_dir: Path
    cache_budget: Budget
    endpoint_url: str | None
    region: str | None
    anonymous: bool
    sources: dict[str, str] = field(compare=False)


def resolve(
    url: str | os.PathLike[str] | None = None,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_budget: int | str | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    anonymous: bool = False,
) -> Settings:
    """Every setting, each from the first place that has it.

    The places: argument; `LAKE_URL`, `LAKE_CACHE_DIR` and so on for each name; every `lake.toml` at or above
    the working directory, the nearest first; the user's `config.toml`; `R2_ACCOUNT_ID` for the endpoint;
    defaults. None and `anonymous=False` count as not given. Paths in a file are relative to that file.

    Raises:
        TypeError: `anonymous` is not a bool: "no" would be true.
        ConfigError: a value that cannot be used, naming the place; or an unknown key in a file.
    """
    if not isinstance(anonymous, bool):
        raise TypeError(f"anonymous is True or False, not {anonymous!r}")
    given = {
        "url": url,
        "cache_dir": cache_dir,
        "cache_budget": cache_budget,
        "endpoint_url": endpoint_url,
        "region": region,
        "anonymous": anonymous or None,
    }
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in _layers(given):
        for name, (raw, source) in layer.items():
            if name not in values:
                values[name], sources[name] = _check(name, raw, source), source
    return Settings(**values, sources=sources)


def user_config() -> Path:
    """The user's own configuration file, which need not exist: `~/.config/lake/config.toml` on Linux."""
    return platformdirs.user_config_path("lake", appauthor=False) / "config.toml"


def project_config() -> Path:
    """The nearest `lake.toml` at or above the working directory; if there is none, where it would be made: there."""
    return next(_project_configs(), Path.cwd() / CONFIG_NAME)


def _project_configs() -> Iterator[Path]:
    """Each `lake.toml` at or above the working directory, the nearest first."""
    here = Path.cwd()
    return (path for folder in (here, *here.parents) if os.path.lexists(path := folder / CONFIG_NAME))


def write_config(path: str | os.PathLike[str], **settings: Any) -> None:
    """Set these keys in the TOML file, creating it where needed; its other lines, comments included, stay.

    A setting that is None is left as it is in the file.

    Raises:
        ConfigError: an unknown setting, a value that cannot be used, or a file that is not a flat TOML file.
    """
    path = Path(path)
    new = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in settings.items()
        if value is not None
    }
    for name, value in new.items():
        _known(name, "write_config")
        _check(name, value, f"write_config({name}=)")
    before = _text(path) if path.exists() else ""
    text = _edited(before, new)
    if not _says(text, _settings(before, path) | new):
        raise ConfigError(f"{path}: cannot be edited line by line; set {', '.join(sorted(new))} by hand")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text, "utf-8", newline="\n")
    fresh.replace(path)


class _Found(NamedTuple):
    """A value before it is checked, and the place that an error message names."""

    raw: Any
    source: str


_Layer = Mapping[str, _Found]


def _layers(given: Mapping[str, Any]) -> Iterator[_Layer]:
    """The places to look, in order; a later one is read only when it is asked for."""
    yield {name: _Found(value, "argument") for name, value in given.items() if value is not None}
    variables = {name: f"LAKE_{name.upper()}" for name in _CHECKS}
    yield {name: _Found(os.environ[v], v) for name, v in variables.items() if os.environ.get(v)}
    for path in (*_project_configs(), user_config()):
        if os.path.lexists(path):
            yield {name: _Found(value, str(path)) for name, value in _anchored(path).items()}
    if account := os.environ.get("R2_ACCOUNT_ID"):
        endpoint = f"https://{account}.r2.cloudflarestorage.com"
        yield {"endpoint_url": _Found(endpoint, "R2_ACCOUNT_ID"), "region": _Found("auto", "R2_ACCOUNT_ID")}
    yield {
        "url": _Found(str(platformdirs.user_data_path("lake", appauthor=False)), "default"),
        "cache_dir": _Found(platformdirs.user_cache_path("lake", appauthor=False), "default"),
        "cache_budget": _Found("auto", "default"),
        "endpoint_url": _Found(None, "default"),
        "region": _Found(None, "default"),
        "anonymous": _Found(False, "default"),
    }


def _as_text(value: Any) -> str:
    """A path or URL as text; "" of what is neither."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    return text if isinstance(text, str) else ""


def _url(value: Any) -> str:
    text = _as_text(value)
    if not text:
        raise ValueError(f"{value!r} is no URL: write e.g. './mylake' or 's3://bucket/prefix'")
    if "://" not in text:
        return str(Path(text).expanduser()) if text.startswith("~") else text
    if "@" in urlsplit(text).netloc:
        raise ValueError("a URL carries no credentials; they come from the standard AWS chain")
    return text


def _endpoint(value: Any) -> str | None:
    if value is None:
        return None
    text = _url(value)
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"{text!r} does not begin with http:// or https://")
    return text


def _path(value: Any) -> Path:
    text = _as_text(value)
    if not text:
        raise ValueError(f"{value!r} is no path of a folder")
    return Path(text).expanduser().absolute()


def _budget(value: Any) -> Budget:
    return "auto" if isinstance(value, str) and value.strip().lower() == "auto" else parse_bytes(value)


def _region(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"{value!r} is no region: write e.g. 'eu-west-1'")
    return value


def _flag(value: Any) -> bool:
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    answer = value if isinstance(value, bool) else words.get(str(value).strip().lower())
    if answer is None:
        raise ValueError(f"{value!r} is neither true nor false")
    return answer


_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "url": _url,
    "cache_dir": _path,
    "cache_budget": _budget,
    "endpoint_url": _endpoint,
    "region": _region,
    "anonymous": _flag,
}


def _check(name: str, raw: Any, source: str) -> Any:
    try:
        return _CHECKS[name](raw)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} (set by {source}): {error}") from None


def _known(name: str, source: str) -> None:
    if name in _CHECKS:
        return
    if re.search(r"secret|token|access_key|password", name, re.IGNORECASE):
        raise ConfigError(
            f"{source}: {name!r}: credentials come from the standard AWS chain and are never kept here"
        )
    near = difflib.get_close_matches(name, _CHECKS, n=1)
    way_out = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_CHECKS)}"
    raise ConfigError(f"{source}: unknown setting {name!r}; {way_out}")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder, where lake's settings should be: rename it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _settings(text: str, path: Path) -> dict[str, Any]:
    values = _parse(text, path)
    for name in values:
        _known(name, str(path))
    return values


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def _anchored(path: Path) -> dict[str, Any]:
    """The file's values, relative paths made absolute, so that they mean one thing in every subfolder."""
    return {
        name: str(path.parent / value)
        if name in ("url", "cache_dir")
        and isinstance(value, str)
        and value
        and "://" not in value
        and value[0] != "~"
        else value
        for name, value in _settings(_text(path), path).items()
    }


def _edited(text: str, new: Mapping[str, Any]) -> str:
    lines = text.removesuffix("\n").split("\n") if text else []
    for name, value in new.items():
        line = f"{name} = {_toml(value)}"
        at = [i for i, old in enumerate(lines) if re.match(rf"\s*{name}\s*=", old)]
        if at:
            lines[at[0]] = line
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _toml(value: str | int | bool) -> str:
    return json.dumps(value, ensure_ascii=False).replace(
        "\x7f", "\\u007f"
    )  # all that JSON leaves and TOML forbids


def _says(text: str, settings: Mapping[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == settings
    except tomllib.TOMLDecodeError:
        return False
