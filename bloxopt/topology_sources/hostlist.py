"""Slurm's hostlists: ``node[01-16,20],login1`` as names."""

from __future__ import annotations

import itertools
import re

from bloxopt.errors import ClusterError

_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?$")
MOST_NAMES = 1_000_000


def expand_hostlist(text: str, where: str) -> list[str]:
    """Every name of a hostlist, leading zeros kept. Raises :class:`ClusterError` naming ``where``."""
    names: list[str] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None or (match.end() < len(text) and text[match.end()] != ","):
            raise ClusterError(f"{where}: cannot read hostlist {text!r} at {text[position:]!r}")
        names.extend(_expand_part(match[0].strip(), where, MOST_NAMES - len(names)))
        position = match.end() + 1
    if not names or text.rstrip().endswith(","):
        raise ClusterError(f"{where}: hostlist {text!r} has an empty part")
    return names


def _expand_part(part: str, where: str, most: int) -> list[str]:
    pieces: list[list[str]] = []
    size = 1
    for inside, plain in _PIECE.findall(part):
        pieces.append([plain] if plain else _expand_ranges(inside, where))
        size *= len(pieces[-1])
        if size > most:
            raise ClusterError(f"{where}: hostlist part {part!r} stands for more than {MOST_NAMES} names")
    return ["".join(letters) for letters in itertools.product(*pieces)]


def _expand_ranges(text: str, where: str) -> list[str]:
    names: list[str] = []
    for piece in text.split(","):
        match = _RANGE.match(piece.strip())
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if len(last) > 12 or int(last) < int(first):
            raise ClusterError(f"{where}: cannot read range [{text}]: write numbers and FIRST-LAST, such as [01-16,20]")
        if int(last) - int(first) >= MOST_NAMES:
            raise ClusterError(f"{where}: range [{text}] stands for more than {MOST_NAMES} names")
        names.extend(f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
    return names
