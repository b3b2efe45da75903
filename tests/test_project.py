"""What holds for the project as a whole: its public names, its wheel, its layers, its documents."""

from __future__ import annotations

import ast
import os
import pickle
import re
import subprocess
import sys
import tomllib
import types
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command

import lake
from lake.cli import app

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "lake").rglob("*.py"))


def python(code: str, *, path: Path = ROOT, cwd: Path | None = None) -> str:
    """What a fresh interpreter prints that finds `lake` in `path`."""
    environment = os.environ | {"PYTHONPATH": str(path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=cwd or path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# names


def test_all_is_sorted_and_equals_what_is_visible() -> None:
    """Nothing is public by accident, and nothing public is forgotten, loaded already or not."""
    visible = [name for name in dir(lake) if name[0] != "_"]
    names = [name for name in visible if not isinstance(getattr(lake, name), types.ModuleType)]

    assert list(lake.__all__) == sorted(lake.__all__) == sorted(names)


def test_public_names_know_where_they_live() -> None:
    """What is loaded on demand is the very object of its module, each time."""
    for name in lake.__all__:
        value = getattr(lake, name)
        assert value is getattr(lake, name)
        assert getattr(sys.modules[value.__module__], name) is value


def test_pickles_find_a_dataset_where_it_lived_first() -> None:
    """A pickle made when `Dataset` was in `lake.repo` loads as the class of today."""
    assert pickle.loads(b"clake.repo\nDataset\n.") is lake.Dataset


def test_every_error_is_importable_from_the_top() -> None:
    """A handler needs one import."""
    from lake import errors

    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert defined <= set(lake.__all__)


def test_importing_lake_loads_nothing_heavy() -> None:
    """Torch, Ray and the libraries behind one feature wait until that feature is used."""
    heavy = ("torch", "ray", "pandas", "boto3", "duckdb", "polars", "rich", "typer")
    code = f"import sys, lake; print(*(set(sys.modules) & set({heavy!r})))"

    assert python(code).split() == []


def test_opening_a_lake_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    """Nor what pyarrow's own modules would load: its datasets import pandas where that is installed."""
    heavy = ("torch", "ray", "pandas", "pyarrow.dataset", "boto3", "duckdb", "polars")
    code = f"""
import sys, lake
lake.open({str(tmp_path)!r}, progress=False)
print(*(set(sys.modules) & set({heavy!r})))
"""
    assert python(code).split() == []


def test_threads_end_before_the_interpreter_does() -> None:
    """All that are told to end by what was registered later: one that came back from C++ after it would abort it."""
    code = """
import atexit, threading, time
from lake import _threads
over = threading.Event()
def work():
    over.wait()
    time.sleep(0.2)
    print("ended", flush=True)
_threads.start("work", work)
atexit.register(over.set)
"""
    assert python(code).strip() == "ended"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_daemon_is_waited_for_at_the_end(module: Path) -> None:
    """None is started but by the module that waits for them."""
    source = module.read_text("utf-8")
    assert module.name == "_threads.py" or not re.search(r"threading\.Thread\([^)]*daemon", source)


def test_submodules_are_reached_through_the_package() -> None:
    """`import lake` is enough for `lake.torch`; a wrong name is still an AttributeError."""
    assert python("import lake; print(lake.torch.__name__)").strip() == "lake.torch"
    with pytest.raises(AttributeError, match="brids"):
        lake.brids  # noqa: B018


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is(module: Path) -> None:
    """The docstring is the map's legend."""
    assert ast.get_docstring(ast.parse(module.read_text("utf-8")))


# the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("lakeshard-*.whl")
    return built


def test_the_wheel_holds_all_modules_and_sql_and_nothing_else(wheel: Path) -> None:
    """Every .py and .sql file, and the marker that makes its types count."""
    expected = {str(path.relative_to(ROOT)) for path in MODULES}
    expected |= {f"lake/{path.relative_to(ROOT)}" for path in (ROOT / "sql").rglob("*") if path.is_file()}
    expected.add("lake/py.typed")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert {name for name in names if name.endswith(".sql")} != set()
    assert names == expected


def test_an_installed_wheel_answers_a_query(wheel: Path, tmp_path: Path) -> None:
    """Away from the checkout, the copy of sql/ inside the package is the one that is used."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = (
        "import lake, pyarrow as pa\n"
        "lk = lake.open('./lake', cache_dir='./cache')\n"
        "lk.commit('birds', pa.table({'key': ['a', 'b']}))\n"
        "print(lake.__file__, lk.sql('select rows from lake.datasets').fetchall())"
    )

    assert python(code, path=site, cwd=tmp_path).strip() == f"{site / 'lake' / '__init__.py'} [(2,)]"


# layers, dependencies, documents


def test_imports_point_down() -> None:
    """The contracts of pyproject.toml hold."""
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as main; main()",
        "--no-cache",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_constraints_pin_what_the_tests_install() -> None:
    """Every direct dependency has a pin that satisfies it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [
        line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if line and line[0] != "#"
    ]
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    extras = project["optional-dependencies"]
    wanted = [
        Requirement(text)
        for text in (*project["dependencies"], *extras["dev"], *extras["demo"], *extras["torch"])
    ]

    loose = [
        str(one)
        for one in wanted
        if one.name != project["name"]
        and not one.specifier.contains(pins.get(canonicalize_name(one.name), ""))
    ]
    assert loose == []
    assert all(pins.values())


def test_every_command_is_documented() -> None:
    """docs/cli.md has a section for each command, with a text and an example, and for no other."""
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    sections = dict(re.findall(r"^## `lake ([a-z -]+)`\n\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))

    assert sorted(sections) == sorted(get_command(app).commands)
    for name, section in sections.items():
        assert re.match(r"[A-Z].*\.$", section.partition("\n\n")[0], re.DOTALL), f"{name} has no text"
        assert re.search(rf"^lake {name}\b", section, re.MULTILINE), f"{name} has no example"


def test_the_code_map_names_every_module() -> None:
    """ARCHITECTURE.md has a line for whatever lies directly in lake/."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    modules = {path.stem for path in MODULES if path.parent == ROOT / "lake" and path.stem != "__init__"}
    packages = {f"{path.parent.name}/" for path in MODULES if path.parent.parent == ROOT / "lake"}

    assert [name for name in sorted(modules | packages) if f"`{name}`" not in text] == []


def test_every_decision_is_listed() -> None:
    """A note that nobody finds decides nothing."""
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\((\d{3}-[\w-]+\.md)\)", (folder / "README.md").read_text("utf-8"))

    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))
