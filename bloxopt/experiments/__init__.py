"""Experiments: TOML files, runs and comparisons of many, result folders, plots."""

from __future__ import annotations

from bloxopt.experiments.comparison import Outcome, Run, averaged_table, compare, comparison_table, plan_runs
from bloxopt.experiments.config import Experiment
from bloxopt.experiments.plots import (
    plot_comparison,
    plot_gantt,
    plot_jct_cdf,
    plot_queue_length,
    plot_result,
    plot_utilisation,
)
from bloxopt.experiments.reading import load_experiment, make_experiment
from bloxopt.experiments.run import resolve, run_and_save, run_experiment
from bloxopt.experiments.store import load_result, save_result

__all__ = [
    "Experiment",
    "Outcome",
    "Run",
    "averaged_table",
    "compare",
    "comparison_table",
    "load_experiment",
    "load_result",
    "make_experiment",
    "plan_runs",
    "plot_comparison",
    "plot_gantt",
    "plot_jct_cdf",
    "plot_queue_length",
    "plot_result",
    "plot_utilisation",
    "resolve",
    "run_and_save",
    "run_experiment",
    "save_result",
]
