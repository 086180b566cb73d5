"""Trace formats: how each is recognised and which reader it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bloxopt.errors import TraceError
from bloxopt.registry import Registry
from bloxopt.throughput import ThroughputOracle
from bloxopt.workloads.files import TraceFile
from bloxopt.workloads.trace import Trace

Reader = Callable[[TraceFile, ThroughputOracle | None], Trace]
"""Makes a trace of a file; the oracle is the user's, ``None`` for the format's own."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A trace format.

    ``columns`` are the columns it needs, by name in a header or, where ``header`` is false, all of
    its columns in order; ``numeric`` are those of a headerless format that hold numbers. A format
    with ``magic`` is recognised by its first bytes instead. One that is not ``detected`` is another reading of files
    that are recognised as something else: it has to be named.
    """

    name: str
    description: str
    read: Reader
    columns: tuple[str, ...] = ()
    delimiter: str = ","
    header: bool = True
    numeric: tuple[str, ...] = ()
    magic: bytes = b""
    detected: bool = True

    def matches(self, file: TraceFile) -> bool:
        """Whether the file looks like this format, judged by its first bytes or line."""
        if self.magic:
            return file.data.startswith(self.magic)
        fields = self._fields(file)
        if self.header:
            return set(self.columns) <= set(fields)
        if len(fields) != len(self.columns):
            return False
        return all(_is_number(fields[self.columns.index(name)]) for name in self.numeric)

    def shared(self, file: TraceFile) -> int:
        """How many of the columns it needs the header of the file has."""
        return len(set(self.columns) & set(self._fields(file))) if self.header else 0

    def needs(self) -> str:
        """What it is recognised by, for messages."""
        if self.magic:
            return f"starts with {self.magic!r}"
        if self.header:
            return f"columns {', '.join(self.columns)}"
        return f"{len(self.columns)} fields separated by {self.delimiter!r}, without a header"

    def _fields(self, file: TraceFile) -> list[str]:
        return [field.strip() for field in file.first_line.split(self.delimiter)]


FORMATS = Registry(
    "trace format",
    {
        **{
            name: f"bloxopt.workloads.readers.{name.replace('-', '_')}:FORMAT"
            for name in (
                "parquet",
                "csv",
                "gavel",
                "shockwave",
                "philly",
                "elasticflow",
                "tiresias",
                "pollux",
                "blox",
                "synergy",
            )
        },
        "pollux-epochs": "bloxopt.workloads.readers.pollux:EPOCHS",
        "pollux-elastic": "bloxopt.workloads.readers.pollux:ELASTIC",
        "pollux-adaptive": "bloxopt.workloads.readers.pollux:ADAPTIVE",
        "pollux-adaptive-fitted": "bloxopt.workloads.readers.pollux:ADAPTIVE_FITTED",
        "shockwave-regimes": "bloxopt.workloads.readers.shockwave:REGIMES",
    },
)
"""Every format by name; add one with a file in ``readers/`` and a name here, or ``FORMATS.register``."""


def detect_format(file: TraceFile) -> Format:
    """The format of a file, by its content; raises naming what was tried when none fits."""
    known: list[Format] = [entry for entry in map(FORMATS.get, FORMATS) if entry.detected]
    binary = [candidate for candidate in known if candidate.magic]
    textual = [candidate for candidate in known if not candidate.magic]
    for candidate in [*binary, *textual]:
        if candidate.matches(file):
            return candidate
    closest = max(textual, key=lambda candidate: candidate.shared(file) / len(candidate.columns))
    lacks = [name for name in closest.columns if name not in closest._fields(file)]
    hint = f"closest is {closest.name}, which lacks column {', '.join(lacks)}; " if closest.shared(file) else ""
    tried = "; ".join(f"{candidate.name} ({candidate.needs()})" for candidate in known)
    line = file.first_line if len(file.first_line) <= 80 else file.first_line[:77] + "..."
    raise TraceError(
        f"{file.path}: no known trace format: the first line is {line!r}; {hint}name the format "
        "(--set trace.format=NAME or trace.format in an experiment, format=... in Python) or change the file to one "
        f"of: {tried}"
    )


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
