"""An assignment in which a node's CPUs or memory are given out twice cannot be built."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloxopt.errors import CheckError
from bloxopt.runtime.assignment import HostShare
from tests.hosts.servers import running, servers

AMOUNT = st.floats(0, 20)
CLUSTER = servers(2, gpus=2, cpus=16, memory_gib=160)
RUNNING, _ = running([("res18", 1)] * 4, CLUSTER)


@given(st.lists(st.tuples(AMOUNT, AMOUNT), min_size=4, max_size=4))
def test_shares_are_accepted_exactly_if_no_node_gives_more_than_it_has(amounts) -> None:
    shares = {row: HostShare((cpus,), (10 * memory,)) for row, (cpus, memory) in enumerate(amounts)}
    fits = all(amounts[i][k] + amounts[i + 1][k] <= 16 for i in (0, 2) for k in (0, 1))
    if fits:
        assert RUNNING.with_hosts(shares).hosts == shares
    else:
        with pytest.raises(CheckError, match=r"shared out on node 'server-\d', which has 16"):
            RUNNING.with_hosts(shares)


def _fair(assignment):
    return {row: HostShare((3.0,) * len(g.nodes), (62.5,) * len(g.nodes)) for row, g in assignment.grants.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda shares: shares.pop(1), "job 'job-1' runs without CPUs and memory"),
        (
            lambda shares: shares.update({7: HostShare((1.0,), (1.0,))}),
            "job 'job-7' has CPUs and memory and does not run",
        ),
        (lambda shares: shares.update({0: HostShare((1.0, 1.0), (1.0,))}), "is not for its nodes"),
        (lambda shares: shares.update({0: HostShare((-1.0,), (1.0,))}), "CPUs are shared out"),
        (lambda shares: shares.update({0: HostShare((1.0,), (float("nan"),))}), "nan GiB of memory are shared out"),
        (lambda shares: shares.update({0: HostShare((float("inf"),), (1.0,))}), "inf CPUs are shared out"),
    ],
)
def test_shares_that_make_no_sense_are_refused(change, message) -> None:
    assignment, _ = running([("res18", 1)] * 8, servers(1))
    waits = assignment.change([7], {})
    shares = _fair(waits)
    assert waits.with_hosts(shares).hosts == shares
    change(shares)
    with pytest.raises(CheckError, match=message):
        waits.with_hosts(shares)


def test_a_job_that_stops_gives_its_share_up_and_the_others_keep_theirs() -> None:
    assignment, _ = running([("res18", 1)] * 4, servers(1))
    shared = assignment.with_hosts(_fair(assignment))
    after = shared.change([2], {})
    assert set(after.hosts or {}) == {0, 1, 3}
    again = after.change([0], {0: assignment.grants[0]._replace(gpus=(2,))})
    assert set(again.hosts or {}) == {1, 3}, "who starts again starts without a share until it is given one"
    assert assignment.hosts is None
    assert assignment.change([1], {}).hosts is None
