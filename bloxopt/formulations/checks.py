"""Checks of the values that users write into blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bloxopt.errors import BloxoptError, FormulationError
from bloxopt.wording import shown as shown


def real_numbers(what: str, value: Any, wanted: str, error: type[BloxoptError] = FormulationError) -> NDArray[Any]:
    """``value`` as an array of real numbers of any shape; raises ``"{what} is …, must be {wanted}"`` for others.

    Text, None and complex numbers are refused, which NumPy would convert without a word.
    """
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and not any(entry is None for entry in array.flat):
            array = array.astype(np.float64)
    except (TypeError, ValueError):
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf":
        raise error(f"{what} is {shown(value)}, must be {wanted}")
    return array


def finite_number(what: str, value: Any) -> float:
    """``value`` as a float; raises naming ``what`` if it is not one finite number."""
    wanted = "a finite number"
    array = real_numbers(what, value, wanted)
    if array.ndim or array.dtype.kind == "b" or not np.isfinite(array):
        raise FormulationError(f"{what} is {shown(value)}, must be {wanted}")
    return float(array)


def checked_amounts(
    user: str, amounts: Mapping[str, float], what: str, lowest: float = 0.0, highest: float = math.inf
) -> dict[str, float]:
    """The mapping as floats; raises naming the block, key and value if one is not a number in range."""
    if not isinstance(amounts, Mapping):
        raise FormulationError(f"{user}: expected a mapping of names to {what}, got {shown(amounts)}")
    return {str(key): checked_amount(user, f"{what} of {key!r}", v, lowest, highest) for key, v in amounts.items()}


def checked_amount(user: str, what: str, value: Any, lowest: float = 0.0, highest: float = math.inf) -> float:
    """``value`` as a float; raises naming the block if it is not a number in [lowest, highest]."""
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number) or math.isinf(number) or not lowest <= number <= highest:
        wanted = f">= {lowest:g}" if math.isinf(highest) else f"between {lowest:g} and {highest:g}"
        raise FormulationError(f"{user}: {what} is {shown(value)}, must be a finite number {wanted}")
    return number


def checked_flag(user: str, what: str, value: Any) -> None:
    """Raise naming ``user`` unless ``value`` is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise FormulationError(f"{user}: {what} is {shown(value)}, must be True or False")


def amount_of_each_type(
    user: str, amounts: Mapping[str, float], what: str, gpu_types: Sequence[str], default: float | None = None
) -> NDArray[np.float64]:
    """Amounts by GPU type name, any case, as an array (types,).

    Raises naming the user for a type that the cluster does not have, and for one of the cluster's that is missing
    unless there is a ``default``.
    """
    by_name = {name.lower(): value for name, value in amounts.items()}
    known = {name.lower() for name in gpu_types}
    for name in amounts:
        if name.lower() not in known:
            raise FormulationError(
                f"{user}: {what} of GPU type {name!r}, which the cluster does not have; it has {', '.join(gpu_types)}"
            )
    for name in gpu_types:
        if name.lower() not in by_name and default is None:
            raise FormulationError(f"{user}: no {what} for GPU type {name!r}; given: {', '.join(amounts) or 'none'}")
    return np.array([by_name.get(name.lower(), default) for name in gpu_types], dtype=np.float64)
