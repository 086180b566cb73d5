"""Synergy's tuned greedy: what each job asks for first, then down to proportional shares where that is too much."""

from __future__ import annotations

from collections.abc import Sequence

from bloxopt.errors import ConfigError
from bloxopt.hosts.base import share_of
from bloxopt.hosts.moves import moved
from bloxopt.hosts.proportional import fair_share
from bloxopt.hosts.rates import HostRates
from bloxopt.hosts.servers import Booking, Places, Servers
from bloxopt.jobs import BoolArray
from bloxopt.runtime.assignment import Assignment


class Tuned:
    """First the demand, then proportional shares, taking back what others have beyond theirs (Synergy-TUNE).

    Job after job in the policy's order: it gets the fewest CPUs and GiB with which it runs fastest; where those
    are not free, its proportional share; and where not even that is, the jobs that have most beyond theirs (CPUs, then
    memory, for each GPU) are cut down to it until there is room.

    ``repack`` places every job anew in every round, on the first nodes with room for its demand, as the published
    simulator does: more demands are met, but jobs move. ``consolidate`` then looks for one node with room for the
    whole gang first, and fills those with the fewest free GPUs. ``largest_first`` serves large gangs first,
    as the paper describes and its code does under LAS. Source: Mohan et al., OSDI 2022, section 3.3.
    """

    gives_more = True

    def __init__(self, repack: bool = False, consolidate: bool = False, largest_first: bool = False) -> None:
        if consolidate and not repack:
            raise ConfigError("consolidate says how jobs are placed anew, which they are not: set repack=True as well")
        self.repack = repack
        self.consolidate = consolidate
        self.largest_first = largest_first

    def allocate(
        self, assignment: Assignment, order: Sequence[int], rates: HostRates, node_up: BoolArray
    ) -> Assignment:
        """The assignment with demands met as far as they go, on other GPUs if jobs are placed anew."""
        grants = assignment.grants
        if self.largest_first:
            order = sorted(order, key=lambda row: -grants[row].num_gpus)
        servers = Servers(rates, node_up)
        bookings: dict[int, Booking] = {}
        for row in order:
            grant = grants[row]
            places = None if self.repack else tuple(zip(grant.nodes, grant.counts, strict=True))
            demand = rates.demand(row, grant.num_gpus, grant.gpu_type)
            booking = self._serve(servers, row, grant.gpu_type, grant.num_gpus, demand, places)
            if booking is None:
                # Gangs that no longer fit together when placed anew stay where they are.
                return Tuned(largest_first=self.largest_first).allocate(assignment, order, rates, node_up)
            servers.book(booking)
            bookings[row] = booking
        if self.repack:
            assignment = moved(assignment, {row: booking.places for row, booking in bookings.items()}, rates)
        grants = assignment.grants
        return assignment.with_hosts(
            {
                row: fair_share(grants[row], rates)
                if booking.amounts is None
                else share_of(grants[row], *booking.amounts)
                for row, booking in bookings.items()
            }
        )

    def _serve(
        self, servers: Servers, row: int, gpu_type: int, gpus: int, demand: tuple[float, float], places: Places | None
    ) -> Booking | None:
        """What a job gets, given what those before it hold."""

        def find(amounts: tuple[float, float] | None) -> Places | None:
            if places is None:
                return servers.search(gpu_type, gpus, amounts, self.consolidate)
            return places if servers.fit(places, amounts) else None

        found = find(demand)
        if found is not None:
            return Booking(row, found, demand)
        # A job that asks for no more than its share anywhere has nothing to give up.
        modest = all(
            demand[0] <= fair[0] and demand[1] <= fair[1]
            for fair, kind in zip(servers.fair, servers.node_type, strict=True)
            if kind == gpu_type
        )
        least = demand if modest else None
        found = find(least)
        if found is None:
            for node, count in _short(servers, gpu_type, gpus) if places is None else places:
                _reclaim(servers, node, count, least)
            found = find(least)
        return None if found is None else Booking(row, found, least)


def _short(servers: Servers, gpu_type: int, need: int) -> Places:
    """Nodes whose GPUs a gang takes when CPUs or memory are short on all: one with room, or the fullest ones."""
    free = [(node, gpus) for node, gpus in enumerate(servers.gpus) if servers.node_type[node] == gpu_type and gpus]
    if need > 1:
        for node, gpus in free:
            if gpus >= need:
                return ((node, need),)
    places = []
    for node, gpus in sorted(free, key=lambda entry: entry[1]):
        count = min(need, gpus)
        places.append((node, count))
        need -= count
        if not need:
            break
    return tuple(places)


def _reclaim(servers: Servers, node: int, count: int, amounts: tuple[float, float] | None) -> None:
    """Cut jobs on a node down to their share until ``count`` more GPUs can have these CPUs and GiB each."""

    def by_surplus(booking: Booking) -> tuple[float, ...]:
        cpus, memory = servers.amounts(booking, node)
        return len(booking.places), -cpus, -memory

    for booking in sorted(servers.booked[node], key=by_surplus):
        if servers.room(node, count, amounts) == count:
            return
        cpus, memory = servers.amounts(booking, node)
        if cpus > servers.fair[node][0] or memory > servers.fair[node][1]:
            servers.cut(booking)
