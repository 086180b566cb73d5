"""Arguments checked against a function's own signature and annotations, for one message wherever they come from."""

from __future__ import annotations

import collections.abc
import difflib
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np

from bloxopt.errors import BloxoptError, InputError

P = ParamSpec("P")
R = TypeVar("R")

_SCALARS: Mapping[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool, np.bool_), "true or false"),
    int: ((int, np.integer), "a whole number"),
    float: ((int, float, np.integer, np.floating), "a number"),
    str: ((str,), "text"),
    type(None): ((type(None),), "none"),
}


def checked_arguments(error: type[BloxoptError] = InputError) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: arguments that a function does not know, lacks, or of another kind than annotated raise ``error``."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        label = function.__qualname__

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as cause:
                _check_names(signature, kwargs, label, error, ())
                raise error(f"{label}(): {cause}; it takes {', '.join(_known(signature))}") from None
            for name, value in given.items():
                _check_value(function, signature.parameters[name], value, label, error)
            return function(*args, **kwargs)

        return checked

    return decorate


def check_options(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    what: str,
    error: type[BloxoptError] = InputError,
    rest: Collection[str] = (),
) -> None:
    """Raise ``error`` unless ``function(**options)`` knows each option, gets what it needs, each of its kind.

    ``rest`` are the options that a ``**`` parameter of the function takes (none given: any).
    """
    signature = inspect.signature(function)
    _check_names(signature, options, what, error, rest)
    for name, value in options.items():
        parameter = signature.parameters.get(name)
        if parameter is not None:
            _check_value(function, parameter, value, what, error)
    try:
        signature.bind(**options)
    except TypeError:
        missing = next(
            name
            for name, p in signature.parameters.items()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and name not in options
        )
        raise _about(missing, error(f"{what}: option {missing!r} is missing")) from None


def as_in_files(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a file writes them: ``"none"`` is no value where the function takes none, and takes no such text."""
    known = inspect.signature(function).parameters

    def value_of(name: str, value: Any) -> Any:
        if not isinstance(value, str) or value != "none" or name not in known:
            return value
        hint = _annotation(function, known[name])
        return None if fits(None, hint) and not fits(value, hint) else value

    return {name: value_of(name, value) for name, value in options.items()}


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of the kind an annotation says; kinds that are not told apart here fit always.

    Of a mapping only that it is one is told: what it may hold is for its user to say.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return True
    if hint in _SCALARS:
        # A truth value is no number, although Python counts it as one.
        return isinstance(value, _SCALARS[hint][0]) and (hint is bool or not isinstance(value, (bool, np.bool_)))
    if hint is None:
        return value is None
    if origin in (Union, types.UnionType):
        return any(fits(value, choice) for choice in inner)
    if origin is Literal:
        return any(value is choice or (isinstance(value, str) and value == choice) for choice in inner)
    if origin is collections.abc.Mapping:
        return isinstance(value, Mapping)
    if origin in (list, tuple, collections.abc.Sequence, collections.abc.Collection):
        listed = isinstance(value, (Collection, np.ndarray)) and not isinstance(value, (str, bytes, Mapping))
        return listed and all(fits(entry, inner[0]) for entry in typing.cast("Iterable[Any]", value))
    if isinstance(hint, type) and getattr(hint, "_is_runtime_protocol", not getattr(hint, "_is_protocol", False)):
        return isinstance(value, hint)
    return True


def is_finite_number(value: object) -> bool:
    """Whether a value is a real number, neither infinite nor a truth value."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def unknown_name(name: str, known: Sequence[str]) -> str:
    """The way out for a name that is not known: the closest one, and all of them."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return (f"did you mean {close[0]!r}? " if close else "") + f"known are {', '.join(known) or 'none'}"


def _check_names(
    signature: inspect.Signature, names: Iterable[str], what: str, error: type[BloxoptError], rest: Collection[str]
) -> None:
    takes_more = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    if takes_more and not rest:
        return
    known = [*_known(signature), *(name for name in rest if takes_more)]
    for name in names:
        if name not in known:
            raise _about(name, error(f"{what}: unknown option {name!r}: {unknown_name(str(name), known)}"))


def _known(signature: inspect.Signature) -> list[str]:
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
    return [name for name, p in signature.parameters.items() if p.kind not in variable]


def _check_value(
    function: Callable[..., Any], parameter: inspect.Parameter, value: Any, what: str, error: type[BloxoptError]
) -> None:
    if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
        return
    hint = _annotation(function, parameter)
    if not fits(value, hint):
        raise _about(parameter.name, error(f"{what}: {parameter.name} is {value!r}, must be {_wanted(hint)}"))


def _about(option: object, error: BloxoptError) -> BloxoptError:
    error.option = str(option)
    return error


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The annotation as an object; Any where it is missing or names something imported for type checkers only."""
    hint = parameter.annotation
    if hint is parameter.empty:
        return Any
    if not isinstance(hint, str):
        return hint
    source: Any = inspect.unwrap(function)
    if isinstance(source, type):
        source = vars(source).get("__init__", source)
    scope = getattr(source, "__globals__", {})
    try:
        return eval(hint, scope)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return Any


def _wanted(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _SCALARS:
        return _SCALARS[hint][1]
    if hint is None:
        return "none"
    if origin in (Union, types.UnionType):
        return " or ".join(_wanted(choice) for choice in inner if choice is not type(None))
    if origin is Literal:
        return " or ".join(repr(choice) for choice in inner)
    if origin is collections.abc.Mapping:
        return f"a mapping from {_wanted(inner[0]).removeprefix('a ')} to {_wanted(inner[1]).removeprefix('a ')}"
    if origin in (list, tuple, collections.abc.Sequence, collections.abc.Collection):
        return f"a list, each {_wanted(inner[0])}"
    return f"a {hint.__name__}" if isinstance(hint, type) else str(hint)
