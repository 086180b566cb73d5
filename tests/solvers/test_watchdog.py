"""A watched solver answers as the solver itself does, and cannot hang, crash or take this process along."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csc_array

from bloxopt.errors import InputError, SolverError
from bloxopt.formulations.solving.standard_form import StandardForm
from bloxopt.solvers import solve
from bloxopt.solvers.base import Capabilities, SolverOptions, SolverResult, Termination
from bloxopt.solvers.watchdog import Watched
from bloxopt.solvers.worker import PATIENCE_SECONDS


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
            for number in (signal.SIGTERM, signal.SIGALRM):
                signal.signal(number, signal.SIG_IGN)
            time.sleep(1000)
        if self.how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.how == "hang with a file":
            handle, _ = tempfile.mkstemp(prefix="left-behind-")
            os.close(handle)
            time.sleep(1000)
        if self.how == "late":
            time.sleep(0.25)
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


def _wait_until_free(solver: Watched) -> None:
    for worker in solver._pool.workers:
        worker.wait_until_free(None)


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


@pytest.mark.parametrize("how", ["hang", "spin", "ignore signals", "stop"])
def test_one_that_hangs_is_not_waited_for_the_next_solve_works_and_it_is_killed(how: str) -> None:
    with Watched(Misbehaving(how)) as solver:
        worker = solver._pool.workers[0]
        _wait_until_free(solver)
        started = time.monotonic()
        answer = solver.solve(_form(), SolverOptions(time_limit=0.1))
        assert time.monotonic() - started < 1.0
        assert answer.termination is Termination.LIMIT_NO_SOLUTION
        assert "not done" in answer.message
        assert (solver.overruns, solver.kills) == (1, 0)
        solver.solver = Misbehaving("none")
        assert solver.solve(_form(), SolverOptions(time_limit=20.0)).termination is Termination.OPTIMAL
        time.sleep(PATIENCE_SECONDS + 0.2)
        assert solver.solve(_form(), SolverOptions(time_limit=20.0)).termination is Termination.OPTIMAL
        assert (solver.overruns, solver.kills) == (1, 1)
        assert worker.wait(20.0) in (-signal.SIGALRM, -signal.SIGKILL)


def test_one_that_hangs_ends_though_nobody_asks_it_anything_any_more() -> None:
    with Watched(Misbehaving("spin")) as solver:
        worker = solver._pool.workers[0]
        _wait_until_free(solver)
        solver.solve(_form(), SolverOptions(time_limit=0.1))
        assert worker.wait(20.0) == -signal.SIGALRM


def test_one_that_is_a_little_late_serves_again_and_its_late_answer_is_nobodys() -> None:
    with Watched(Misbehaving("late")) as solver:
        pids = {worker.pid for worker in solver._pool.workers}
        _wait_until_free(solver)
        for columns in (3, 4, 5):
            answer = solver.solve(_form(columns), SolverOptions(time_limit=0.05))
            assert answer.termination is Termination.LIMIT_NO_SOLUTION
            answer = solver.solve(_form(columns + 7), SolverOptions(time_limit=20.0))
            assert answer.termination is Termination.OPTIMAL
            assert answer.x.shape == (columns + 7,)
        assert {worker.pid for worker in solver._pool.workers} == pids
        assert (solver.overruns, solver.kills, solver.crashes) == (3, 0, 0)


def test_what_there_is_to_do_meanwhile_is_done_while_it_works_and_not_if_it_is_quick() -> None:
    done: list[str] = []
    with Watched(Misbehaving("late")) as solver:
        _wait_until_free(solver)
        solver.solve(_form(), SolverOptions(time_limit=0.3), meanwhile=lambda: done.append("late"))
        solver.solver = Misbehaving("none")
        solver.solve(_form(), SolverOptions(time_limit=20.0), meanwhile=lambda: done.append("quick"))
    assert done == ["late"]


def test_temporary_files_go_with_the_process_however_it_ends(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with Watched(Misbehaving("hang with a file")) as solver:
        _wait_until_free(solver)
        solver.solve(_form(), SolverOptions(time_limit=0.1))
        assert list(tmp_path.rglob("left-behind-*"))
    assert list(tmp_path.iterdir()) == []


def test_past_its_end_it_is_asked_nothing(watched: Watched) -> None:
    answer = watched.solve(_form(), SolverOptions(time_limit=20.0), until=time.monotonic() - 0.001)
    assert answer.termination is Termination.LIMIT_NO_SOLUTION
    assert "no time was left" in answer.message


def test_a_program_that_is_too_large_for_one_that_does_not_listen_is_given_up_in_time() -> None:
    with Watched("highs") as solver:
        _wait_until_free(solver)
        for worker in solver._pool.workers:
            os.kill(worker.pid, signal.SIGSTOP)
        started = time.monotonic()
        answer = solver.solve(_form(200_000), SolverOptions(time_limit=0.2))
        assert time.monotonic() - started < 2.0
        assert answer.termination is Termination.ERROR
        assert solver.solve(_form(), SolverOptions(time_limit=0.2)).x is None
        assert solver.solve(_form(), SolverOptions(time_limit=60.0)).termination is Termination.OPTIMAL


def test_where_memory_runs_out_the_system_takes_the_worker_first(watched: Watched) -> None:
    ours = int(Path("/proc/self/oom_score").read_text())
    assert int(Path(f"/proc/{watched._pool.workers[0].pid}/oom_score").read_text()) > ours


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
    pids = [worker.pid for worker in solver._pool.workers]
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
        pid = solver._pool.workers[0].pid
        answer = solver.solve(_form(), SolverOptions(time_limit=0.001))
        assert answer.termination is Termination.LIMIT_NO_SOLUTION
        assert "still starting" in answer.message
        assert solver.solve(_form(), SolverOptions(time_limit=60.0)).termination is Termination.OPTIMAL
        assert (solver._pool.workers[0].pid, solver.kills) == (pid, 0)


def test_once_started_the_first_answer_does_not_wait_for_imports() -> None:
    with Watched("ortools:glop") as solver:
        _wait_until_free(solver)
        started = time.monotonic()
        assert solver.solve(_form(), SolverOptions(time_limit=20.0)).termination is Termination.OPTIMAL
        warm = time.monotonic() - started
        started = time.monotonic()
        solver.solve(_form(seed=1), SolverOptions(time_limit=20.0))
        assert warm < 0.5 + 20 * (time.monotonic() - started)
