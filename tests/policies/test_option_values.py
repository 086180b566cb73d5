"""Whatever an option of a part that has a name is given: it is used, or refused by one sentence of ours."""

from __future__ import annotations

import inspect
import math
import warnings

import pytest

import bloxopt as bx
from bloxopt.admission import ADMISSIONS, get_admission
from bloxopt.errors import BloxoptError
from bloxopt.formulations.policies import POLICIES, get_policy
from bloxopt.selection import SELECTORS, get_selector

NEVER = (math.nan, [math.nan], {"a": math.nan}, b"x", object(), [[1]], "no such thing")
"""What no option takes: no number, no list of numbers, no table of them, no name."""

EXTREME = (0, -1, 1e12, 10**30, True, [], {}, "")
"""What some options take and others do not."""

PARTS = [
    *((get_policy, name, POLICIES) for name in POLICIES),
    *((get_admission, name, ADMISSIONS) for name in ADMISSIONS),
    *((get_selector, name, SELECTORS) for name in SELECTORS),
]


@pytest.fixture(scope="module")
def trace():
    return bx.load_trace("gavel-15").head(3)


def use(make, name, options, trace):
    made = make(name, **options)
    used = {get_policy: {"policy": made}, get_admission: {"admission": made}, get_selector: {"selector": made}}[make]
    bx.simulate(trace, "2xV100+2xK80", **{"policy": "fifo", **used}, max_rounds=2)


def refusal(make, name, options, trace):
    """What is said about the options; nothing where they are used. Warnings of NumPy are as bad as tracebacks."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            use(make, name, options, trace)
        except BloxoptError as error:
            return str(error)
    return ""


def options_of(name, registry):
    parameters = inspect.signature(registry.get(name)).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


@pytest.mark.parametrize(("make", "name", "registry"), PARTS, ids=[f"{p[0].__name__}-{p[1]}" for p in PARTS])
def test_a_value_is_used_or_refused_in_one_line(make, name, registry, trace):
    for option in options_of(name, registry):
        for value in NEVER:
            with pytest.raises(BloxoptError) as refused:
                use(make, name, {option: value}, trace)
            assert "\n" not in str(refused.value)
            assert "raised" not in str(refused.value)
        for value in EXTREME:
            assert "raised" not in refusal(make, name, {option: value}, trace), (option, value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": [1.0]}, "limits is given, but rule is 'simulation'"),
        ({"hysteresis": 0.2}, "hysteresis is given, but rule is 'simulation'"),
        ({"rule": "load", "limits": [1.0, 2.0], "horizon": 5.0}, "horizon is given, but rule is 'load'"),
        ({"rule": "load", "limits": [1.0, 2.0], "metric": "makespan"}, "metric is given, but rule is 'load'"),
        ({"candidates": ["fifo", "ls"]}, "unknown policy among the candidates 'ls': did you mean 'las'"),
        ({"candidates": ["fifo", "automatic"]}, "candidate 'automatic' chooses among policies itself"),
    ],
)
def test_options_of_automatic_choice_that_would_do_nothing_are_refused(options, message):
    with pytest.raises(BloxoptError, match=message):
        get_policy("automatic", **options)
