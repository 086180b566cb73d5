"""``load_trace``: a trace by its registered name or from a file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from bloxopt.errors import TraceError, UnknownNameError
from bloxopt.throughput import as_oracle
from bloxopt.workloads.files import TraceFile
from bloxopt.workloads.formats import FORMATS, Format, detect_format
from bloxopt.workloads.shipped import TRACES, ShippedTrace
from bloxopt.workloads.trace import Trace


def load_trace(name_or_path: str | Path | Trace, format: str | None = None, throughput: Any = None) -> Trace:
    """A trace by name (``bloxopt traces`` lists them) or from a file.

    ``format`` names the format of a file (see ``FORMATS``); by default its content tells. Files may
    be gzip-compressed, or members of a tar archive (``archive.tar.gz/member.csv``). ``throughput``
    replaces the trace's own throughputs: an oracle, a function, a table or a path to one.

    Raises :class:`~bloxopt.errors.TraceError` for a file that cannot be read, naming file, line and
    field; :class:`~bloxopt.errors.UnknownNameError` for a name that is neither registered nor a file.
    """
    if isinstance(name_or_path, Trace):
        return name_or_path if throughput is None else name_or_path.with_throughput(throughput)
    if not isinstance(name_or_path, (str, Path)):
        raise TraceError(f"cannot load a trace from {name_or_path!r}: give a name, a path or a Trace")
    shipped: ShippedTrace | None = TRACES.get(str(name_or_path)) if name_or_path in TRACES else None
    if shipped is None and _is_only_a_name(name_or_path):
        raise UnknownNameError("trace", str(name_or_path), TRACES)
    known: Format | None = FORMATS.get(format) if format is not None else None
    if shipped is not None and format not in (None, shipped.format):
        raise TraceError(f"trace {shipped.name!r} is in format {shipped.format!r}, not {format!r}: leave format out")
    oracle = None if throughput is None else as_oracle(throughput)
    if shipped is None:
        file = TraceFile.open(name_or_path)
        return (known or detect_format(file)).read(file, oracle)
    reader: Format = FORMATS.get(shipped.format)
    trace = reader.read(TraceFile.open(shipped.location()), oracle)
    return replace(
        trace,
        name=shipped.name,
        source=shipped.source,
        licence=shipped.licence,
        notes=(*shipped.notes, *trace.notes),
        default_cluster=shipped.cluster,
    )


def _is_only_a_name(text: str | Path) -> bool:
    """Whether this can only be meant as a registered name: no such file, and not written like a path."""
    path = Path(text)
    separators = {os.sep, os.altsep or os.sep}
    return not os.path.exists(path) and not path.suffix and not any(mark in str(text) for mark in separators)
