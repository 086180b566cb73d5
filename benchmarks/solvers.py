"""Which solver is fastest on which program: the measurements behind ``solver="auto"``.

Prints, for each program and size, the seconds that each back end spends inside ``solve`` (from the
StandardForm to the checked answer; the best of ``--repeats`` in one process, imports not counted) and
their ratio to the baseline measured beside them: SciPy's ``linprog``/``milp`` on the same matrices.

    python benchmarks/solvers.py                        # everything, some minutes
    python benchmarks/solvers.py --sizes 64 4096 --solvers auto highs cvxpy:clarabel --programs contended
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from solvers_instances import contended, one_configuration, plentiful

from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.solvers import SOLVERS, SolverOptions, get_solver

PROGRAMS: dict[str, Callable[[int], StandardForm]] = {
    "contended": contended,
    "plentiful": plentiful,
    "one_configuration": one_configuration,
}
SIZES = (64, 256, 1024, 4096, 16384)
MIP_GAP = 1e-3


def baseline(form: StandardForm, time_limit: float) -> tuple[float, float | None]:
    """Seconds and objective of SciPy's HiGHS on the program."""
    started = time.perf_counter()
    result = milp(
        form.cost,
        integrality=form.integer.astype(int),
        bounds=Bounds(form.lower, form.upper),
        constraints=LinearConstraint(form.matrix, form.row_lower, form.row_upper),
        options={"time_limit": time_limit, "mip_rel_gap": MIP_GAP},
    )
    return time.perf_counter() - started, None if result.x is None else float(result.fun)


def measure(form: StandardForm, name: str, repeats: int, time_limit: float) -> tuple[float, float | None, str]:
    """Best seconds, objective and ending of a solver on the program."""
    solver = get_solver(name)
    options = SolverOptions(time_limit=time_limit, mip_gap=MIP_GAP if form.is_mip else None)
    best = np.inf
    for _ in range(repeats):
        result = solver.solve(form, options)
        best = min(best, result.solve_seconds)
        if best > time_limit / repeats:
            break
    return best, result.objective, f"{result.termination} {result.solver if name == 'auto' else ''}".strip()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="numbers of jobs")
    parser.add_argument("--solvers", nargs="+", choices=list(SOLVERS), default=list(SOLVERS))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds; slower solvers skip larger sizes")
    chosen = parser.parse_args(arguments)
    header = f"{'program':<18}{'jobs':>6}  {'solver':<16}{'seconds':>9}{'ratio':>8}  {'objective':>14}  ending"
    for program in chosen.programs:
        print(header, flush=True)
        slow: set[str] = set()
        for size in chosen.sizes:
            form = PROGRAMS[program](size)
            seconds, objective = baseline(form, chosen.time_limit)
            print(_line(program, size, "scipy (baseline)", seconds, 1.0, objective, ""), flush=True)
            for name in chosen.solvers:
                able = get_solver(name).capabilities
                if name in slow or not (able.mip if form.is_mip else able.lp):
                    continue
                taken, found, ending = measure(form, name, chosen.repeats, chosen.time_limit)
                print(_line(program, size, name, taken, taken / seconds, found, ending), flush=True)
                if taken > chosen.time_limit / 5:
                    slow.add(name)


def _line(program: str, size: int, name: str, seconds: float, ratio: float, objective: float | None, end: str) -> str:
    value = "none" if objective is None else f"{objective:.8g}"
    return f"{program:<18}{size:>6}  {name:<16}{seconds:>9.4f}{ratio:>8.2f}  {value:>14}  {end}"


if __name__ == "__main__":
    main()
