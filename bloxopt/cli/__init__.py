"""The command line: ``bloxopt simulate``, ``compare``, ``plot``, ``generate``, ``topology`` and the listings."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from bloxopt.errors import BloxoptError, InfeasibleError

INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit: 0 for success, 2 for bad input or usage, 130 for Ctrl-C."""
    try:
        code = run()
    except KeyboardInterrupt:  # in the handling of another error
        code = INTERRUPTED
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """The exit code of one command line; errors are one line on stderr, never a traceback."""
    _prepare_streams()
    try:
        import typer

        from bloxopt.cli.app import app
    except KeyboardInterrupt:
        return _interrupted()
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="bloxopt", standalone_mode=False)
        sys.stdout.flush()
        # Typer itself turns Ctrl-C into this exit code, or, in older versions, into Abort.
        if code == INTERRUPTED:
            raise KeyboardInterrupt
    except InfeasibleError as error:
        # Worth a few more solves: which bounds conflict, and what alone would mend it.
        return _fail(str(error.diagnosis or error))
    except BloxoptError as error:
        return _fail(str(error))
    except usage_error as error:
        context = getattr(error, "ctx", None)
        command = "bloxopt" if context is None else context.command_path
        return _fail(f"{error.format_message()} (see {command} --help)")  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough.
        _drop_output()
        return 1
    except OSError as error:
        if error.filename is None:
            if _is_nowhere():
                return _fail("the current folder is not there any more: change to another one")
            _drop_output()
        return _fail(f"{error.filename or 'standard output'}: {error.strerror or error}")
    return code if isinstance(code, int) else 0


def _prepare_streams() -> None:
    """What is printed to a stream that was closed (``>&-``) is lost, as ``print`` has it, and characters that its
    encoding does not have are written out; nothing fails for either."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the program runs
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _is_nowhere() -> bool:
    """Whether the current folder was deleted."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return INTERRUPTED


def _drop_output() -> None:
    """Python must not fail again when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return 2
