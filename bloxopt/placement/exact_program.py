"""The exact placement of gangs on the nodes of one GPU type, as an integer program without symmetry.

Equal nodes form a class and equal gangs a group, so that nothing in the program can be swapped for its twin:

    Σ_p z[c,p] = number of nodes in class c                     each node is filled by one pattern
    Σ_c,p count(p,k) z[c,p] = Σ_g,s count(s,k) x[g,s]           pieces of k GPUs made = pieces of k GPUs used
    Σ_s x[g,s] + kept_g + unplaced_g = gangs in group g         each gang is split, kept where it is, or unplaced

A pattern says which resident gangs a node keeps and which pieces it takes; a split is a multiset of pieces that
adds up to a gang. This is the cutting-stock model of Gilmore and Gomory (1961), whose linear relaxation is far
tighter than that of one variable per job and node. Gangs with too many splits get integer piece counts of
their own instead (slots), if possible only for splits over several racks.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse import csc_array

from bloxopt.errors import SolverError
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.jobs import FloatArray
from bloxopt.placement.exact_instance import Gang, Instance, Where
from bloxopt.placement.exact_patterns import Counts, Demand, Piece, Room, TooManyPatternsError, fillings, splits
from bloxopt.solvers.base import Solver, SolverOptions, SolverResult, Termination

MOST_SPLITS = 250
"""Splits up to which a group of gangs gets one variable per split."""
MOST_PATTERNS = 60_000
"""Patterns of all classes together; a larger program is not attempted."""

GroupKey = tuple[int, int, int | None, bool, float, float, float]
Resident = tuple[str, int, int]
"""("group", group, GPUs) of a gang that runs on one node, ("gang", number, GPUs) of one that runs on several."""


@dataclass(frozen=True, slots=True)
class ExactAnswer:
    """Where the gangs go (gang number → nodes), the objective, the best proven bound and how the solve ended."""

    placement: dict[int, Where]
    objective: float
    bound: float
    termination: Termination
    solver: str

    @property
    def gap(self) -> float:
        """Relative distance between objective and bound."""
        return (self.objective - self.bound) / max(1e-10, abs(self.objective))


def solve_instance(
    instance: Instance, solver: Solver, options: SolverOptions, start: Mapping[int, Where]
) -> ExactAnswer:
    """The cheapest placement found; never worse than ``start``, which is a valid one.

    Raises :class:`SolverError` for a solver that takes no integer programs.
    """
    if not solver.capabilities.mip:
        raise SolverError(
            f"exact placement needs a solver for integer programs, which {solver.name} is not: use 'highs', "
            "'ortools:scip', 'ortools:cp-sat' or 'auto'"
        )
    at_hand = instance.cost(start)
    if at_hand <= 1e-9:
        return ExactAnswer(dict(start), at_hand, at_hand, Termination.OPTIMAL, "none")
    try:
        program = PlacementProgram(instance)
    except TooManyPatternsError:
        return ExactAnswer(dict(start), at_hand, 0.0, Termination.FEASIBLE, "none")
    result = _solve(program, solver, options, start)
    bound = max(0.0, result.bound if result.bound is not None else 0.0)
    placement, objective = dict(start), at_hand
    if result.x is not None:
        found = program.placement(result.x)
        cost = instance.cost(found)
        if cost < at_hand - 1e-9:
            placement, objective = found, cost
    ending = result.termination if result.x is not None else Termination.FEASIBLE
    return ExactAnswer(placement, objective, min(bound, objective), ending, result.solver)


def _solve(
    program: PlacementProgram, solver: Solver, options: SolverOptions, start: Mapping[int, Where]
) -> SolverResult:
    """The solver's answer from ``start``, or without it if that one is left unproven with time to spare.

    HiGHS has returned the start itself, next to a bound far below, where its presolve alone solves the program.
    """
    started = time.perf_counter()
    result = solver.solve(program.form, options, program.point(start))
    left = None if options.time_limit is None else options.time_limit - (time.perf_counter() - started)
    if result.termination is not Termination.FEASIBLE or (left is not None and left < 0.05 * (options.time_limit or 0)):
        return result
    again = solver.solve(program.form, replace(options, time_limit=left))
    return again if again.x is not None else result


@dataclass(slots=True)
class _NodeClass:
    """Nodes that nothing tells apart, what runs on each, and the columns of their patterns."""

    nodes: list[int]
    residents: list[tuple[Resident, int]]
    pieces: list[Piece] = field(default_factory=list)
    patterns: dict[Counts, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Group:
    """Gangs that nothing tells apart: their numbers, and the columns of their splits or, failing those, slots."""

    gang: Gang
    members: list[int]
    pieces: list[Piece]
    splits: dict[tuple[Piece, ...], int] = field(default_factory=dict)
    slots: list[_Slot] = field(default_factory=list)
    unplaced: int = -1
    moved: int = -1


@dataclass(slots=True)
class _Slot:
    """One gang of a group on its own: whether it is placed, how many of each piece, which zones."""

    placed: int
    counts: dict[Piece, int]
    zones: dict[int, int]


class PlacementProgram:
    """The program of an instance, and the way from a placement to a point of it and back."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._cost: list[float] = []
        self._upper: list[float] = []
        self._entries: list[tuple[int, int, float]] = []
        self._rows: dict[Hashable, int] = {}
        self._bounds: list[tuple[float, float]] = []
        zoned = any(gang.rack_weight > 0 or gang.one_rack for gang in instance.gangs)
        self._zone = instance.rack if zoned else np.zeros(instance.num_nodes, dtype=np.int64)
        self._groups = self._group_gangs()
        self._class_of: dict[int, int] = {}
        self._classes = self._class_nodes()
        self._kept: dict[int, int] = {}
        for number, group in enumerate(self._groups):
            self._add_group(number, group)
        for number, members in enumerate(self._classes):
            self._add_class(number, members)
        self.form = self._compile()

    # ------------------------------------------------------------------ what is equal to what

    def _group_gangs(self) -> list[_Group]:
        keys: dict[GroupKey, _Group] = {}
        self._group_of: list[int] = []
        order: dict[GroupKey, int] = {}
        for number, gang in enumerate(self.instance.gangs):
            prices = (gang.rack_weight, gang.move_cost, gang.span_factor)
            key = (gang.size, gang.profile, gang.max_nodes, gang.one_rack, *prices)
            if key not in keys:
                order[key] = len(keys)
                keys[key] = _Group(gang, [], self._pieces(gang))
            keys[key].members.append(number)
            self._group_of.append(order[key])
        return list(keys.values())

    def _pieces(self, gang: Gang) -> list[Piece]:
        """Pieces of a gang that some node could hold."""
        allowed = self.instance.profiles[gang.profile].allowed
        pieces = []
        for zone in np.unique(self._zone[allowed]).tolist():
            largest = int(self.instance.free[allowed & (self._zone == zone)].max(initial=0))
            pieces += [Piece(zone, gang.profile, gpus) for gpus in range(1, min(gang.size, largest) + 1)]
        return pieces

    def _class_nodes(self) -> list[_NodeClass]:
        instance = self.instance
        residents: dict[int, Counter[Resident]] = defaultdict(Counter)
        for number, gang in enumerate(instance.gangs):
            held = gang.held or {}
            for node, gpus in held.items():
                single = len(held) == 1
                residents[node][("group", self._group_of[number], gpus) if single else ("gang", number, gpus)] += 1
        allowed = np.column_stack([profile.allowed for profile in instance.profiles])
        classes: dict[Hashable, _NodeClass] = {}
        for node in range(instance.num_nodes):
            mine = sorted(residents[node].items())
            key = (
                int(self._zone[node]),
                int(instance.total[node]),
                int(instance.free[node]),
                float(instance.cpus[node]),
                float(instance.memory_gib[node]),
                bool(instance.guests[node]),
                bool(instance.claimed[node]),
                instance.groups[node],
                allowed[node].tobytes(),
                tuple(mine),
            )
            classes.setdefault(key, _NodeClass([], mine)).nodes.append(node)
        for number, members in enumerate(classes.values()):
            self._class_of.update(dict.fromkeys(members.nodes, number))
        return list(classes.values())

    # ------------------------------------------------------------------ columns and rows

    def _column(self, cost: float, upper: float, entries: Mapping[Hashable, float]) -> int:
        column = len(self._cost)
        self._cost.append(cost)
        self._upper.append(upper)
        for name, value in entries.items():
            self._entries.append((self._row(name), column, value))
        return column

    def _row(self, name: Hashable, lower: float = 0.0, upper: float = 0.0) -> int:
        """The row of that name, made with these bounds when first asked for."""
        if name not in self._rows:
            self._rows[name] = len(self._bounds)
            self._bounds.append((lower, upper))
        return self._rows[name]

    def _add_group(self, number: int, group: _Group) -> None:
        gang, count = group.gang, len(group.members)
        here = ("group", number)
        self._row(here, count, count)
        group.unplaced = self._column(self.instance.weights.unplaced * gang.size, count, {here: 1.0})
        running = [member for member in group.members if self.instance.gangs[member].held is not None]
        if running:
            # A running gang is kept by a pattern, or a column of its own, or counts as moved.
            self._row(("running", number), len(running), len(running))
            group.moved = self._column(gang.move_cost, len(running), {("running", number): 1.0})
        for member in running:
            held = self.instance.gangs[member].held or {}
            if len(held) > 1:
                racks = len({int(self.instance.rack[node]) for node in held})
                cost = self.instance.span_cost(gang, len(held), racks)
                # A class may hold several of its nodes: then all of them have to keep it.
                keeps = Counter(("kept", member, self._class_of[node]) for node in held)
                entries: dict[Hashable, float] = {here: 1.0, ("running", number): 1.0}
                entries.update((row, -float(n)) for row, n in keeps.items())
                self._kept[member] = self._column(cost, 1.0, entries)
        zones = len({piece.zone for piece in group.pieces})
        found = splits(gang.size, group.pieces, gang.max_nodes, gang.one_rack, MOST_SPLITS)
        if found is None:
            # Those within a rack may still be few enough; then only gangs over several racks need slots.
            inside = splits(gang.size, group.pieces, gang.max_nodes, True, zones * MOST_SPLITS) if zones > 1 else None
            if inside is None or not gang.one_rack:
                least = 1 if inside is None else 2
                group.slots = [self._add_slot(here, number, group, slot, least) for slot in range(count)]
            found = inside or []
        for split in found:
            cost = self.instance.span_cost(gang, len(split), self._racks(split))
            used: dict[Hashable, float] = {("piece", piece): -float(k) for piece, k in Counter(split).items()}
            group.splits[tuple(sorted(split))] = self._column(cost, count, {here: 1.0, **used})

    def _racks(self, pieces: Sequence[Piece]) -> int:
        return len({piece.zone for piece in pieces})

    def _add_slot(self, here: Hashable, number: int, group: _Group, slot: int, least_zones: int) -> _Slot:
        gang = group.gang
        weights = self.instance.weights
        size: Hashable = ("size", number, slot)
        entries: dict[Hashable, float] = {here: 1.0, size: -float(gang.size)}
        if gang.max_nodes is not None:
            self._row(("nodes", number, slot), -np.inf, 0.0)
            entries["nodes", number, slot] = -float(gang.max_nodes)
        if gang.one_rack:
            self._row(("racks", number, slot), -np.inf, 0.0)
            entries["racks", number, slot] = -1.0
        if least_zones > 1:
            self._row(("least", number, slot), 0.0, np.inf)
            entries["least", number, slot] = -float(least_zones)
        # Slots are filled in order, so that no two of them can be swapped.
        for follows, sign in ((slot, 1.0), (slot + 1, -1.0)):
            if 0 < follows < len(group.members):
                self._row(("order", number, follows), -np.inf, 0.0)
                entries["order", number, follows] = sign
        placed = self._column(self.instance.span_cost(gang, 0, 0), 1.0, entries)
        zones = {}
        for zone in sorted({piece.zone for piece in group.pieces}):
            self._row(("zone", number, slot, zone), -np.inf, 0.0)
            entries = {("zone", number, slot, zone): -float(gang.size)}
            if gang.one_rack:
                entries["racks", number, slot] = 1.0
            if least_zones > 1:
                entries["least", number, slot] = 1.0
            zones[zone] = self._column(gang.rack_weight, 1.0, entries)
        counts = {}
        for piece in group.pieces:
            entries = {("piece", piece): -1.0, size: float(piece.gpus)}
            entries["zone", number, slot, piece.zone] = float(piece.gpus)
            if gang.max_nodes is not None:
                entries["nodes", number, slot] = 1.0
            counts[piece] = self._column(weights.node * gang.span_factor, gang.size // piece.gpus, entries)
        return _Slot(placed, counts, zones)

    def _add_class(self, number: int, members: _NodeClass) -> None:
        instance = self.instance
        node = members.nodes[0]
        zone = int(self._zone[node])
        here = ("class", number)
        self._row(here, len(members.nodes), len(members.nodes))
        members.pieces = sorted(
            {
                piece
                for group in self._groups
                for piece in group.pieces
                if piece.zone == zone and instance.profiles[piece.profile].allowed[node]
            }
        )
        candidates = [(self._demand(self._profile(who), who[2]), most) for who, most in members.residents]
        candidates += [
            (self._demand(piece.profile, piece.gpus), int(instance.free[node]) // piece.gpus)
            for piece in members.pieces
        ]
        room = Room(
            int(instance.free[node]),
            float(instance.cpus[node]),
            float(instance.memory_gib[node]),
            bool(instance.guests[node]),
            bool(instance.claimed[node]),
            instance.groups[node],
        )
        total, occupied = int(instance.total[node]), int(instance.total[node] - instance.free[node])
        sizes = np.array([demand.gpus for demand, _ in candidates], dtype=np.int64)
        for counts in fillings(room, candidates, MOST_PATTERNS - len(self._cost)):
            used = occupied + int(sizes @ np.array(counts, dtype=np.int64)) if counts else occupied
            cost = instance.weights.fragment * (0 < used < total)
            entries: dict[Hashable, float] = {here: 1.0}
            for (who, _), kept in zip(members.residents, counts, strict=False):
                if kept and who[0] == "group":
                    entries["group", who[1]] = entries["running", who[1]] = float(kept)
                elif kept:
                    entries["kept", who[1], number] = 1.0
            for piece, made in zip(members.pieces, counts[len(members.residents) :], strict=True):
                if made:
                    entries["piece", piece] = float(made)
            members.patterns[counts] = self._column(cost, len(members.nodes), entries)

    def _profile(self, who: Resident) -> int:
        return self._groups[who[1]].gang.profile if who[0] == "group" else self.instance.gangs[who[1]].profile

    def _demand(self, profile: int, gpus: int) -> Demand:
        what = self.instance.profiles[profile]
        return Demand(gpus, what.cpus * gpus, what.memory_gib * gpus, what.exclusive, what.group)

    def _compile(self) -> StandardForm:
        row, column, value = (np.array(part) for part in zip(*self._entries, strict=True))
        shape = (len(self._bounds), len(self._cost))
        bounds = np.array(self._bounds, dtype=np.float64)
        return StandardForm(
            cost=np.array(self._cost),
            matrix=csc_array((value, (row, column)), shape=shape),
            row_lower=bounds[:, 0],
            row_upper=bounds[:, 1],
            lower=np.zeros(shape[1]),
            upper=np.array(self._upper, dtype=np.float64),
            integer=np.ones(shape[1], dtype=bool),
        )

    # ------------------------------------------------------------------ points and placements

    def point(self, placement: Mapping[int, Where]) -> FloatArray | None:
        """The columns' values (columns,) that stand for a placement; None if what runs breaks a rule of its own."""
        x = np.zeros(len(self._cost))
        made: dict[int, Counter[Piece]] = defaultdict(Counter)
        kept: dict[int, Counter[Resident]] = defaultdict(Counter)
        slots: Counter[int] = Counter()
        for number, gang in enumerate(self.instance.gangs):
            group = self._groups[self._group_of[number]]
            where = placement.get(number)
            if gang.held is not None and where != gang.held:
                x[group.moved] += 1
            if where is None:
                x[group.unplaced] += 1
            elif where == gang.held:
                for node, gpus in where.items():
                    single = len(where) == 1
                    kept[node][("group", self._group_of[number], gpus) if single else ("gang", number, gpus)] += 1
                if number in self._kept:
                    x[self._kept[number]] = 1
            else:
                pieces = [Piece(int(self._zone[node]), gang.profile, gpus) for node, gpus in where.items()]
                for node, piece in zip(where, pieces, strict=True):
                    made[node][piece] += 1
                split = group.splits.get(tuple(sorted(pieces)))
                if split is not None:
                    x[split] += 1
                    continue
                slot = group.slots[slots[self._group_of[number]]]
                slots[self._group_of[number]] += 1
                x[slot.placed] = 1
                for piece in pieces:
                    x[slot.counts[piece]] += 1
                    x[slot.zones[piece.zone]] = 1
        for members in self._classes:
            for node in members.nodes:
                counts = tuple(kept[node][who] for who, _ in members.residents)
                pattern = members.patterns.get(counts + tuple(made[node][piece] for piece in members.pieces))
                if pattern is None:
                    return None
                x[pattern] += 1
        return x

    def placement(self, x: FloatArray) -> dict[int, Where]:
        """The placement that a feasible point stands for."""
        whole = np.round(x).astype(np.int64)
        spare: dict[Piece, list[int]] = defaultdict(list)
        kept: dict[int, Where] = {}
        held_at: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, gang in enumerate(self.instance.gangs):
            if gang.held is not None and len(gang.held) == 1:
                held_at[self._group_of[number], next(iter(gang.held))].append(number)
        for members in self._classes:
            chosen = [counts for counts, column in members.patterns.items() for _ in range(whole[column])]
            for node, counts in zip(members.nodes, chosen, strict=True):
                for (who, _), many in zip(members.residents, counts, strict=False):
                    for number in held_at[who[1], node][:many] if who[0] == "group" else ():
                        kept[number] = dict(self.instance.gangs[number].held or {})
                for piece, many in zip(members.pieces, counts[len(members.residents) :], strict=True):
                    spare[piece] += [node] * many
        for number, column in self._kept.items():
            if whole[column]:
                kept[number] = dict(self.instance.gangs[number].held or {})
        placement = kept
        for group in self._groups:
            bundles = [split for split, column in group.splits.items() for _ in range(whole[column])]
            bundles += [
                tuple(piece for piece, column in slot.counts.items() for _ in range(whole[column]))
                for slot in group.slots
                if whole[slot.placed]
            ]
            # Running gangs that lose their place come first: stopping one for good would be worse than a wait.
            waiting = sorted(
                (number for number in group.members if number not in kept),
                key=lambda number: self.instance.gangs[number].held is None,
            )
            for number, bundle in zip(waiting, bundles, strict=False):
                where: Counter[int] = Counter()
                for piece in bundle:
                    where[_spare_node(spare[piece], where)] += piece.gpus
                placement[number] = dict(where)
        return placement


def _spare_node(nodes: list[int], taken: Mapping[int, int]) -> int:
    """One of the nodes with such a piece left, if possible not one that the gang is on already."""
    at = next((at for at, node in enumerate(nodes) if node not in taken), 0)
    return nodes.pop(at)
