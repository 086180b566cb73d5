"""Placement functions from outside bloxopt: what they answer is checked before it is booked."""

from __future__ import annotations

from typing import Any

import numpy as np

from bloxopt.errors import InputError, guarded
from bloxopt.placement.strategy import Changes, Found, Offer, Strategy, WholeRound
from bloxopt.runtime.resources import Grant
from bloxopt.wording import shown

_CONTRACT = (
    "a placement function is called with (offer, need) and returns None if the gang does not fit, else (nodes, "
    "counts): numbers of different nodes, and GPUs on each, at most offer.available[node], that add up to need"
)


def trusted(strategy: Strategy) -> Strategy:
    """A strategy of bloxopt as it is, at no cost; any other with every answer checked.

    The checked one raises :class:`~bloxopt.errors.InputError` naming the function and what it must return.
    """
    module = getattr(strategy, "__module__", None) or ""
    # Placements of whole rounds answer with grants, which assignments check themselves.
    if module.startswith("bloxopt.placement.") or isinstance(strategy, (WholeRound, _Checked)):
        return strategy
    return _Checked(strategy)


def whole_round(strategy: WholeRound, method: str, *arguments: Any) -> Changes:
    """What a placement of whole rounds decides, refused if it is no list of rows and grants by row."""
    if strategy.__module__.startswith("bloxopt.placement."):
        answer: Changes = getattr(strategy, method)(*arguments)
        return answer
    what = f"placement {type(strategy).__qualname__}: {method}"
    with guarded(what):
        changes: Any = getattr(strategy, method)(*arguments)
    try:
        stop, start = changes
        rows, grants = list(_whole(stop)), {int(row): grant for row, grant in start.items()}
    except (TypeError, ValueError, AttributeError):
        rows, grants = [], {-1: None}
    if not all(isinstance(grant, Grant) for grant in grants.values()):
        raise InputError(
            f"{what} answered {shown(changes)}: it must return (stop, start), the rows of the jobs that stop and a "
            "mapping from the rows of those that start to their Grant (workspace.grant makes one)"
        )
    return rows, grants


class _Checked:
    """Calls a user's function and refuses answers that name no place for the gang."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._name = getattr(strategy, "__qualname__", None) or type(strategy).__qualname__

    def __call__(self, offer: Offer, need: int) -> Found | None:
        with guarded(f"placement function {self._name}"):
            found: Any = self._strategy(offer, need)
        if found is None:
            return None
        try:
            nodes, counts, *rest = found
            gpus = rest[0] if rest else None
            answer = Found(_whole(nodes), _whole(counts), None if gpus is None else _whole(gpus))
            fault = "more than nodes, counts and gpus" if len(rest) > 1 else _fault(answer, offer, need)
        except (TypeError, ValueError):
            fault = "no pair of lists of whole numbers"
        if fault:
            job = offer.workspace.jobs.job_id[offer.row]
            raise InputError(
                f"placement function {self._name} answered {shown(found)} for job {job!r}, which needs {need} GPUs: "
                f"{fault}; {_CONTRACT}"
            )
        return answer


def _whole(values: Any) -> tuple[int, ...]:
    """The values as whole numbers; raises ValueError or TypeError if they are none."""
    array = np.asarray(values)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise ValueError
    return tuple(array.tolist())


def _fault(found: Found, offer: Offer, need: int) -> str:
    """What is wrong with an answer of whole numbers, empty if nothing."""
    available, (nodes, counts, gpus) = offer.available, found
    if len(nodes) != len(counts):
        return f"{len(nodes)} nodes and {len(counts)} counts"
    if len(set(nodes)) < len(nodes):
        return "a node is named twice"
    for node, count in zip(nodes, counts, strict=True):
        if not 0 <= node < len(available):
            return f"there is no node {node}, they go from 0 to {len(available) - 1}"
        if not 1 <= count <= available[node]:
            return f"{count} GPUs on node {node}, where {int(available[node])} are free for it"
    if sum(counts) != need:
        return f"that is {sum(counts)} GPUs"
    if gpus is None:
        return ""
    workspace = offer.workspace
    offset, free = workspace.cluster.gpu_offset, workspace.able_gpus(workspace.jobs.gpu_milli[offer.row])
    owners = np.repeat(nodes, counts).tolist()
    mine = len(gpus) == need == len(set(gpus)) and all(
        offset[node] <= gpu < offset[node + 1] and free[gpu] for node, gpu in zip(owners, gpus, strict=True)
    )
    return "" if mine else "its GPUs are not free ones of these nodes, in the order of the nodes"
