"""The application: how a command registers itself, and what an error or a warning becomes."""

from __future__ import annotations

import enum
import logging
import os
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

import lake
from lake.cli.output import error, note


class Failed(Exception):
    """Something outside of lake failed; the text is all that there is to say."""


class Mistaken(Failed):
    """Something outside of lake could make no sense of what the user wrote."""


class Exit(enum.IntEnum):
    """What `lake` exits with."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    DAMAGED = 3
    CONFLICT = 4
    TRY_AGAIN = 5
    OVER_BUDGET = 6
    NOT_FOUND = 7


EXIT_CODES = (
    "Exit codes: 0 done, 1 failed, 2 usage, 3 damage found, 4 conflict, 5 try again, "
    "6 over budget, 7 not found."
)

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The lake: a folder or s3://bucket/prefix (or: LAKE_URL)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A dataset: birds, birds@v1, birds@#12 or birds@2026-11-01.")
]


class _Command(TyperCommand):
    """A command that refuses what would be passed over in silence: an option given twice, an empty value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter, times in Counter(order).items():
            if times > 1 and not (parameter.multiple or getattr(parameter, "is_flag", False)):
                ctx.fail(f"{_called(parameter)} is given {times} times")
        for parameter in order:
            value = given.get(parameter.name)
            if parameter.name != "message" and "" in (value if isinstance(value, list) else [value]):
                ctx.fail(f"{_called(parameter)} is empty")
        return super().parse_args(ctx, args)


def _called(parameter: Any) -> str:
    """The option or argument as the user knows it."""
    option = parameter.param_type_name == "option"
    return str(max(parameter.opts, key=len) if option else parameter.metavar)


class _Commands(TyperGroup):
    """All commands, in the order in which they registered; any error ends as one line and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # whoever reads our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Exit.DONE
        return result

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
            sys.exit(code if isinstance(code, int) else Exit.DONE)
        except Exception as failure:
            sys.exit(_report(failure))
        except KeyboardInterrupt:
            error("interrupted; whatever was committed before is whole")
            sys.exit(130)


app = typer.Typer(
    cls=_Commands,
    name="lake",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

F = TypeVar("F", bound=Callable[..., Any])


def command(name: str, *examples: str) -> Callable[[F], F]:
    """Register the function as `lake <name>`; its docstring is the help, with the examples below."""
    shown = "\n\n".join(f"Example: {each}" for each in examples)
    register: Callable[[F], F] = app.command(name, cls=_Command, epilog=shown)
    return register


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """`K=V` each; a usage error where one is not, or a K is there twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{option} {text!r}: write K=V")
        if name in found:
            raise typer.BadParameter(f"{option} {name} is given twice: {found[name]!r} and {value!r}")
        found[name] = value
    return found


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lake {lake.__version__}")
        raise typer.Exit


@app.callback(epilog=f"{EXIT_CODES} LAKE_DEBUG=1 shows where an error came from.")
def _lake(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Samples, committed once, streamed anywhere: a columnar data lake for machine learning."""
    warnings.showwarning = lambda message, *_, **__: note(f"warning: {message}")
    log = logging.getLogger("lake")
    if not any(isinstance(handler, _Notes) for handler in log.handlers):
        log.addHandler(_Notes(logging.WARNING))
        log.propagate = False


class _Notes(logging.Handler):
    """What the library logs, on stderr like everything that is not a result."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def answers() -> Iterator[None]:
    """Where an answer is fetched: a failure inside DuckDB becomes the lake's error, or one line."""
    from lake import catalog

    try:
        yield
    except catalog.Error as error:
        if (cause := catalog.cause_of(error)) is not error:
            raise cause from error
        failed = Mistaken if isinstance(error, catalog.Mistake) else Failed
        raise failed(str(error).partition("\n\n")[0]) from error


def exit_code(failure: BaseException) -> Exit:
    """What a command that ends with this error exits with."""
    if isinstance(failure, lake.StoreError):
        return Exit.TRY_AGAIN if failure.retryable else Exit.FAILED
    for kind, code in _CODES:
        if isinstance(failure, kind):
            return code
    return Exit.FAILED


_CODES: tuple[tuple[type[BaseException], Exit], ...] = (
    (lake.IntegrityError, Exit.DAMAGED),
    (lake.ConflictError, Exit.CONFLICT),
    (lake.CommitStateUnknown, Exit.TRY_AGAIN),
    (lake.BudgetError, Exit.OVER_BUDGET),
    (lake.NotFoundError, Exit.NOT_FOUND),
    (lake.VersionExpired, Exit.NOT_FOUND),
    (lake.ConfigError, Exit.USAGE),
    (lake.LakeError, Exit.FAILED),
    (Mistaken, Exit.USAGE),
    (FileNotFoundError, Exit.NOT_FOUND),
    (ValueError, Exit.USAGE),
    (TypeError, Exit.USAGE),
)


def _report(failure: Exception) -> int:
    """Say on stderr what went wrong, in one line; the exit code."""
    if os.environ.get("LAKE_DEBUG", "") not in ("", "0"):
        traceback.print_exception(failure)
    if isinstance(failure, TyperException):  # the parser's
        if text := failure.format_message():  # else it printed the help
            context = getattr(failure, "ctx", None)
            error(f"{text} (see `{context.command_path if context else 'lake'} --help`)")
        return Exit.USAGE
    known = isinstance(failure, lake.LakeError | Failed | ValueError | OSError)
    error(str(failure) if known else f"{type(failure).__name__}: {failure}")
    return exit_code(failure)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: the `lake` script."""
    app(args=arguments, prog_name="lake")
    raise AssertionError("unreachable: a command exits")
