"""Arguments are checked against the function's own signature; user code that raises is named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pytest

from bloxopt.arguments import check_options, checked_arguments, fits, is_finite_number
from bloxopt.cluster import Node
from bloxopt.errors import ClusterError, ConfigError, FormulationError, InputError, TraceError, guarded
from bloxopt.registry import Registry
from bloxopt.selection import SELECTORS, get_selector
from bloxopt.simulation.options import SimulationOptions


@checked_arguments(TraceError)
def scale(trace: Any, /, factor: float, *, keep: Literal["a", "b"] = "a", names: Sequence[str] | None = None) -> float:
    return factor


@pytest.mark.parametrize(
    ("value", "hint", "good"),
    [
        (1, int, True),
        (np.int64(1), int, True),
        (True, int, False),
        (1.0, int, False),
        (1, float, True),
        (np.float32(1), float, True),
        ("1", float, False),
        (True, bool, True),
        (1, bool, False),
        (None, int | None, True),
        ("x", int | None, False),
        (["a"], Sequence[str], True),
        ("a", Sequence[str], False),
        ([1], Sequence[str], False),
        ({1: 2}, Mapping[int, float], True),
        ([1], Mapping[int, float], False),
        ("b", Literal["a", "b"], True),
        ([], Literal["a", "b"], False),
        (object(), Any, True),
    ],
)
def test_values_fit_their_annotation_and_truth_values_are_no_numbers(value: object, hint: Any, good: bool) -> None:
    assert fits(value, hint) is good


def test_what_a_function_does_not_take_is_named_with_what_it_takes() -> None:
    for call, message in (
        (lambda: scale(0, "x"), "scale: factor is 'x', must be a number"),
        (lambda: scale(0, 1, keep="c"), "keep is 'c', must be 'a' or 'b'"),
        (lambda: scale(0, 1, names="ab"), "names is 'ab', must be a list, each text"),
        (lambda: scale(0, faktor=1), "scale: unknown option 'faktor': did you mean 'factor'"),
        (lambda: scale(0), "missing a required argument: 'factor'; it takes factor, keep, names"),
    ):
        with pytest.raises(TraceError) as error:
            call()
        assert message in str(error.value)
    assert scale(0, 2.5, names=["a"]) == 2.5


def test_options_that_go_on_to_another_function_are_known_too() -> None:
    def factory(backfill: bool = False, **options: Any) -> None: ...

    check_options(factory, {"backfill": True, "name": "x"}, "policy", ConfigError, rest=["name"])
    with pytest.raises(ConfigError, match="policy: unknown option 'foo': known are backfill, name"):
        check_options(factory, {"foo": 1}, "policy", ConfigError, rest=["name"])
    with pytest.raises(ConfigError, match="policy: backfill is 'x', must be true or false"):
        check_options(factory, {"backfill": "x"}, "policy", ConfigError, rest=["name"])


@pytest.mark.parametrize("name", list(SELECTORS))
def test_no_selector_takes_an_unknown_option(name: str) -> None:
    with pytest.raises(ConfigError, match=f"selector '{name}': unknown option 'foo': known are "):
        get_selector(name, foo=3)
    with pytest.raises(ConfigError, match="unknown option 'name'"):
        get_selector(name, name="x")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("priorities", {"type_order": [3]}),
        ("priorities", {"type_order": "v100"}),
        ("priorities", {"shuffle_seed": "x"}),
        ("priorities", {"fill_each_type": "x"}),
        ("ranking", {"starvation_seconds": "x"}),
        ("exact", {"mip_gap": "x"}),
    ],
)
def test_options_of_selectors_have_their_kind(name: str, options: dict[str, Any]) -> None:
    (option,) = options
    with pytest.raises(ConfigError, match=f"{option} is .* must be "):
        get_selector(name, **options)


@pytest.mark.parametrize("name", [3, None, [], {}, 1.5])
def test_a_name_that_is_no_text_is_not_looked_up(name: Any) -> None:
    registry = Registry("preset", {"default": 1})
    assert name not in registry
    with pytest.raises(InputError, match=r"preset must be a name, not .*: choose one of default"):
        registry.get(name)


@pytest.mark.parametrize("failure", [ValueError("no"), SystemExit(3), RecursionError(), MemoryError()])
def test_whatever_user_code_raises_is_one_error_with_its_place_and_cause(failure: BaseException) -> None:
    def user_code() -> None:
        raise failure

    with pytest.raises(FormulationError) as error, guarded("policy file x.py", FormulationError):
        user_code()
    text = str(error.value)
    assert text.startswith(f"policy file x.py raised {type(failure).__name__}")
    assert f"({__file__}, line " in text
    assert error.value.__cause__ is failure


def test_own_errors_and_ctrl_c_pass() -> None:
    with pytest.raises(TraceError, match=r"^mine$"), guarded("x", FormulationError):
        raise TraceError("mine")
    with pytest.raises(KeyboardInterrupt), guarded("x", FormulationError):
        raise KeyboardInterrupt


# -- finite numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1.5, 1e308, 10**300, np.int64(3), np.float32(0.5)])
def test_what_is_a_finite_number(value: object) -> None:
    assert is_finite_number(value)


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, math.nan, 10**400, True, np.True_, "1", None, 1j, np.array([1.0])]
)
def test_what_is_none_is_refused_where_one_is_needed(value: Any) -> None:
    assert not is_finite_number(value)
    with pytest.raises(ClusterError, match="num_gpus is"):
        Node(name="n", gpu_type="A100", num_gpus=value)
    with pytest.raises(ConfigError, match="round_seconds is"):
        SimulationOptions(round_seconds=value)


def test_only_the_interval_between_plans_may_be_infinite() -> None:
    assert SimulationOptions(solve_interval=math.inf).solve_interval == math.inf
    others: list[Any] = [-math.inf, math.nan, True, "inf", -1.0]
    for value in others:
        with pytest.raises(ConfigError, match="solve_interval is"):
            SimulationOptions(solve_interval=value)
    for name in ("first_round", "restart_cost", "start_cost", "round_budget"):
        with pytest.raises(ConfigError, match=f"{name} is inf"):
            SimulationOptions().with_(**{name: math.inf})
