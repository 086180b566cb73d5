"""Gandiva-Fair: users hold GPUs of each generation by their tickets, and trade them where both gain.

User u holds y_uj GPUs of type j, shared by its jobs in proportion to their gangs, so that its work per second
``U_u = Σ_j y_uj r_uj`` is linear: r_uj is the mean normalised rate of its jobs on a GPU of type j. A user to whom a
fast GPU is worth σ_b slow ones buys from one to whom it is worth σ_s < σ_b, at a price in between: both gain, and all
GPUs stay in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bloxopt.errors import FormulationError
from bloxopt.formulations.checks import checked_amounts
from bloxopt.formulations.constraints.base import tenant_codes
from bloxopt.formulations.measures import NormalizedThroughput
from bloxopt.formulations.objectives.base import Objective
from bloxopt.formulations.solving.affine import Affine
from bloxopt.formulations.solving.session import Outcome, Session, outcome_of
from bloxopt.formulations.solving.sums import sum_by
from bloxopt.formulations.space import AllocationSpace
from bloxopt.formulations.systems.completion_matching import asked_columns
from bloxopt.formulations.systems.hierarchical_fairness import FairSplit
from bloxopt.jobs import FloatArray, IntArray
from bloxopt.solvers.base import Termination

_SAME = 1e-9
"""Relative difference of speed-ups, and GPUs, too small to trade."""


@dataclass(frozen=True, eq=False)
class GenerationTrading(Objective):
    """Shares of each GPU type by the ``tickets`` of users (tenants), and trades that leave no user worse off.

    ``tickets``: by tenant, those not named have 1. A user never holds more than its jobs can use; what it leaves goes
    to the others by tickets. ``trade``: ``"prices"`` lets users trade pairwise, the one to whom fast GPUs are worth
    most from the one to whom they are worth least (Gandiva-Fair); ``"program"`` maximises all work in one linear
    program in which every *job* does at least as much as without trade; ``"none"`` leaves the shares by tickets.
    ``price``: ``"middle"``, the geometric mean of both speed-ups, or ``"second"``, the second highest of those who
    could buy (but not below the seller's). The value is the sum of the jobs' normalised throughputs.
    Source: Chaudhary et al., EuroSys 2020.
    """

    tickets: Mapping[str, float] | None = None
    trade: Literal["prices", "program", "none"] = "prices"
    price: Literal["middle", "second"] = "middle"
    curvature = "staged"
    progress_dependent = False

    def __post_init__(self) -> None:
        for tenant, count in checked_amounts("GenerationTrading", self.tickets or {}, "tickets").items():
            if count <= 0:
                raise FormulationError(f"GenerationTrading: tickets of {tenant!r} is {count:g}, must be > 0")
        if self.trade not in ("prices", "program", "none"):
            raise FormulationError(f"GenerationTrading: trade is {self.trade!r}, must be prices, program or none")
        if self.price not in ("middle", "second"):
            raise FormulationError(f"GenerationTrading: price is {self.price!r}, must be 'middle' or 'second'")

    def utility(self, space: AllocationSpace, x: FloatArray) -> float:
        return float(_work(space).at(x).sum())

    def solve(self, session: Session) -> Outcome:
        space = session.space
        market = Market.of(space, self.tickets or {})
        x = market.shares(market.entitled)
        if self.trade == "program":
            return self._program(session, x)
        trades = 0
        if self.trade == "prices":
            holding, trades = market.traded(self.price)
            x = market.shares(holding)
        value = self.utility(space, x)
        return Outcome(x, value, None, Termination.OPTIMAL, message=f"closed form, {trades} trades")

    def _program(self, session: Session, x: FloatArray) -> Outcome:
        work = _work(session.space).only_counted()
        program = session.program()
        program.block = program.unique_family("GenerationTrading")
        program.add_rows(work, lower=work.at(x) * (1.0 - 1e-9))
        return outcome_of(session.solve(program, work.total()))


@dataclass(frozen=True, eq=False)
class Market:
    """Users and what they hold: arrays (users, types).

    ``demand`` GPUs of the gangs that can run on each type, ``worth`` r_uj (0 where nothing of the user's runs),
    ``entitled`` GPUs by tickets. ``column`` (jobs, types) is the column of each job on each type, -1 for none, and
    ``user`` (jobs,) whose it is.
    """

    space: AllocationSpace
    column: IntArray
    user: IntArray
    demand: FloatArray
    worth: FloatArray
    entitled: FloatArray

    @classmethod
    def of(cls, space: AllocationSpace, tickets: Mapping[str, float]) -> Market:
        """The market of the users with jobs that can run; raises for tickets of a tenant without jobs in a trace.

        On a live cluster such a tenant has no part in the market until it has jobs.
        """
        codes = tenant_codes("GenerationTrading", tickets, space)
        count = np.ones(len(space.catalog.table.tenants))
        for tenant, code in codes.items():
            count[code] = tickets[tenant]
        column = asked_columns(space)
        users, user = np.unique(space.tenant, return_inverse=True)
        job, kind = np.nonzero(column >= 0)
        cell = user[job] * len(space.gpu_types) + kind
        shape = (len(users), len(space.gpu_types))
        gpus = space.gpu_demand[column[job, kind]].astype(np.float64)
        demand = sum_by(cell, gpus, shape[0] * shape[1])
        work = sum_by(cell, _worth_of_columns(space)[column[job, kind]], shape[0] * shape[1])
        worth = np.divide(work, demand, out=np.zeros_like(work), where=demand > 0).reshape(shape)
        demand = demand.reshape(shape)
        capacity = space.capacity.astype(np.float64)
        # A user with the part φ of every type runs its gangs φ Σ_j c_j / demand_uj of the time, which is at most 1.
        load = np.divide(capacity, demand, out=np.zeros(shape), where=demand > 0).sum(axis=1)
        room = np.divide(1.0, load, out=np.zeros(len(users)), where=load > 0)
        able = np.flatnonzero(room > 0)
        part = np.zeros(len(users))
        part[able] = FairSplit(np.zeros(len(able), np.int64), count[users[able]], room[able]).parts(np.ones(1))
        entitled = np.where(demand > 0, part[:, None] * capacity, 0.0)
        return cls(space, column, user, demand, worth, entitled)

    def shares(self, holding: FloatArray) -> FloatArray:
        """Time shares (num_columns,) when each user's GPUs serve its jobs in proportion to their gangs."""
        part = np.divide(holding, self.demand, out=np.zeros_like(holding), where=self.demand > 0)
        x = np.zeros(self.space.num_columns)
        job, kind = np.nonzero(self.column >= 0)
        x[self.column[job, kind]] = np.minimum(part[self.user[job], kind], 1.0)
        return x

    def traded(self, price: str) -> tuple[FloatArray, int]:
        """Holdings after trading, and the number of trades: for every pair of types, the furthest apart first."""
        holding = self.entitled.copy()
        mean = self.worth.mean(axis=0)
        pairs = [(fast, slow) for fast in range(len(mean)) for slow in range(len(mean)) if mean[fast] > mean[slow] > 0]
        pairs.sort(key=lambda pair: mean[pair[1]] / mean[pair[0]])
        trades = sum(self._trade(holding, fast, slow, price) for fast, slow in pairs)
        return holding, trades

    def _trade(self, holding: FloatArray, fast: int, slow: int, price: str) -> int:
        """Trade two types until nobody gains any more; ``holding`` is changed. Returns the number of trades."""
        able = (self.worth[:, fast] > 0) & (self.worth[:, slow] > 0)
        speedup = np.divide(self.worth[:, fast], self.worth[:, slow], out=np.zeros(len(able)), where=able)
        per_fast, per_slow = (
            np.divide(1.0, self.demand[:, kind], out=np.zeros(len(able)), where=able) for kind in (fast, slow)
        )
        can_buy, can_sell = able.copy(), able.copy()
        trades = 0
        while True:
            buyers = np.flatnonzero(can_buy & (holding[:, slow] > _SAME))
            sellers = np.flatnonzero(can_sell & (holding[:, fast] > _SAME))
            if not len(buyers) or not len(sellers):
                return trades
            buyer, seller = buyers[np.argmax(speedup[buyers])], sellers[np.argmin(speedup[sellers])]
            if speedup[buyer] <= speedup[seller] * (1.0 + _SAME):
                return trades
            cost = np.sqrt(speedup[buyer] * speedup[seller])
            if price == "second":
                rivals = speedup[buyers[buyers != buyer]]
                cost = max(float(rivals.max(initial=0.0)), float(speedup[seller]))
            # Neither may hold more than its jobs can use: buying takes time on the fast type and frees it on the slow.
            amount = min(holding[seller, fast], holding[buyer, slow] / cost)
            for user, change, bar in (
                (buyer, per_fast[buyer] - cost * per_slow[buyer], can_buy),
                (seller, cost * per_slow[seller] - per_fast[seller], can_sell),
            ):
                if change > 0:
                    most = max(self._time_left(holding, user), 0.0) / change
                    bar[user] = bar[user] and most > amount
                    amount = min(amount, most)
            if amount > _SAME:
                trades += 1
                holding[seller, fast] -= amount
                holding[buyer, fast] += amount
                holding[seller, slow] += cost * amount
                holding[buyer, slow] -= cost * amount
            elif can_buy[buyer] and can_sell[seller]:
                return trades

    def _time_left(self, holding: FloatArray, user: int) -> float:
        """Part of the time in which the user's jobs could still run."""
        has = self.demand[user] > 0
        return 1.0 - float((holding[user, has] / self.demand[user, has]).sum())


def _work(space: AllocationSpace) -> Affine:
    """Normalised throughput of each job, weights aside."""
    built = NormalizedThroughput(weighted=False).build(space)
    return built


def _worth_of_columns(space: AllocationSpace) -> FloatArray:
    worth: FloatArray = _work(space).value
    return worth
