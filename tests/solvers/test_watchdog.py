"""A watched solver answers as the solver itself does, and cannot hang, crash or take this process along."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
from scipy.sparse import csc_array

from bloxopt.errors import InputError, SolverError
from bloxopt.formulations.standard_form import StandardForm
from bloxopt.solvers import solve
from bloxopt.solvers.base import Capabilities, SolverOptions, SolverResult, Termination
from bloxopt.solvers.watchdog import Watched


def _form(columns: int = 5, seed: int = 0) -> StandardForm:
    random = np.random.default_rng(seed)
    return StandardForm(
        cost=-random.uniform(1, 2, columns),
        matrix=csc_array(random.uniform(0, 1, (2, columns))),
        row_lower=np.full(2, -np.inf),
        row_upper=np.ones(2),
        lower=np.zeros(columns),
        upper=np.ones(columns),
        integer=np.zeros(columns, dtype=bool),
    )


class Misbehaving:
    """A solver that does what it is told instead of solving."""

    name = "misbehaving"
    capabilities = Capabilities(mip=True)

    def __init__(self, how: str) -> None:
        self.how = how

    def solve(self, form: StandardForm, options: SolverOptions = SolverOptions(), warm_start=None) -> SolverResult:
        if self.how == "hang":
            while True:
                time.sleep(1)
        if self.how == "spin":
            while True:
                pass
        if self.how == "ignore signals":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)
        if self.how == "exit":
            os._exit(3)
        if self.how == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.how == "raise":
            raise RuntimeError("no licence")
        if self.how == "refuse":
            raise SolverError("linear programs only")
        if self.how == "print":
            print("chatter", flush=True)
            os.write(1, b"more chatter\n")
            sys.stderr.write("and errors\n")
        if self.how == "nothing":
            return None  # type: ignore[return-value]
        return SolverResult(Termination.OPTIMAL, x=form.lower, objective=0.0, solver="misbehaving")


def _wait_until_ready(solver: Watched) -> None:
    for worker in solver._workers:
        worker.wait_until_ready(None)


@pytest.fixture(scope="module")
def watched():
    with Watched("highs") as solver:
        solver.solve(_form())
        yield solver


def test_it_answers_as_the_solver_itself(watched: Watched) -> None:
    for seed in range(5):
        alone, answer = solve(_form(seed=seed), "highs"), watched.solve(_form(seed=seed))
        assert (answer.termination, answer.solver) == (Termination.OPTIMAL, "highs")
        assert answer.objective == alone.objective
        assert np.array_equal(answer.x, alone.x)
    assert watched.capabilities == Watched("highs").capabilities


@pytest.mark.parametrize("how", ["hang", "spin", "ignore signals"])
def test_one_that_overruns_its_limit_is_killed_and_the_next_solve_works(how: str) -> None:
    with Watched(Misbehaving(how)) as solver:
        worker = solver._workers[0]
        _wait_until_ready(solver)
        started = time.monotonic()
        answer = solver.solve(_form(), SolverOptions(time_limit=0.1))
        assert time.monotonic() - started < 1.0
        assert answer.termination is Termination.LIMIT_NO_SOLUTION
        assert "killed" in answer.message
        assert solver.kills == 1
        assert worker.wait(20.0) == -signal.SIGKILL
        solver.solver = Misbehaving("none")
        assert solver.solve(_form(), SolverOptions(time_limit=20.0)).termination is Termination.OPTIMAL


@pytest.mark.parametrize(("how", "words"), [("exit", "exit code 3"), ("crash", "exit code -11")])
def test_one_that_dies_has_failed_and_the_next_solve_works(how: str, words: str) -> None:
    with Watched(Misbehaving(how)) as solver:
        answer = solver.solve(_form())
        assert answer.termination is Termination.ERROR
        assert words in answer.message
        assert solver.crashes == 1
        solver.solver = "highs"
        assert solver.solve(_form()).termination is Termination.OPTIMAL


def test_one_that_raises_or_returns_nonsense_has_failed() -> None:
    with Watched(Misbehaving("raise")) as solver:
        assert "no licence" in solver.solve(_form()).message
        solver.solver = Misbehaving("nothing")
        answer = solver.solve(_form())
        assert answer.termination is Termination.ERROR
        assert "NoneType" in answer.message


def test_an_error_that_tells_the_user_what_to_do_passes_through() -> None:
    with Watched(Misbehaving("refuse")) as solver, pytest.raises(SolverError, match="linear programs only"):
        solver.solve(_form())


def test_what_a_solver_prints_disturbs_nobody(capfd) -> None:
    with Watched(Misbehaving("print")) as solver:
        assert solver.solve(_form()).termination is Termination.OPTIMAL
    assert capfd.readouterr() == ("", "")


def test_threads_take_turns(watched: Watched) -> None:
    answers: dict[int, float | None] = {}

    def ask(seed: int) -> None:
        answers[seed] = watched.solve(_form(seed=seed)).objective

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {seed: solve(_form(seed=seed), "highs").objective for seed in range(8)}


def test_closing_ends_its_processes() -> None:
    solver = Watched("highs")
    solver.start()
    pids = [worker.pid for worker in solver._workers]
    assert len(pids) == 2
    solver.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert solver.solve(_form()).termination is Termination.OPTIMAL, "and it may be used again"
    solver.close()


def test_a_solver_that_cannot_be_pickled_is_refused_with_the_way_out() -> None:
    class Local(Misbehaving):
        pass

    with pytest.raises(InputError, match="top of a module"):
        Watched(Local("none"))


def test_one_that_is_still_starting_is_not_killed_for_it() -> None:
    with Watched("ortools:glop") as solver:
        pid = solver._workers[0].pid
        answer = solver.solve(_form(), SolverOptions(time_limit=0.001))
        assert answer.termination is Termination.LIMIT_NO_SOLUTION
        assert "still starting" in answer.message
        assert solver.solve(_form(), SolverOptions(time_limit=60.0)).termination is Termination.OPTIMAL
        assert (solver._workers[0].pid, solver.kills) == (pid, 0)


def test_once_started_the_first_answer_does_not_wait_for_imports() -> None:
    with Watched("ortools:glop") as solver:
        _wait_until_ready(solver)
        started = time.monotonic()
        assert solver.solve(_form(), SolverOptions(time_limit=20.0)).termination is Termination.OPTIMAL
        warm = time.monotonic() - started
        started = time.monotonic()
        solver.solve(_form(seed=1), SolverOptions(time_limit=20.0))
        assert warm < 0.5 + 20 * (time.monotonic() - started)
