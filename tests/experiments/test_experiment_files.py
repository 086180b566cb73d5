"""Experiment files: what they may say, and one clear message for what they may not."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from typing import get_args

import pytest

from bloxopt.errors import BloxoptError, ConfigError
from bloxopt.experiments import load_experiment, make_experiment, resolve
from bloxopt.experiments.comparison import AXES
from bloxopt.experiments.config import CompareSection, SimulationSection
from bloxopt.experiments.files import toml_text
from bloxopt.experiments.policies import make_policy
from bloxopt.experiments.run import check_inputs
from bloxopt.simulation import SimulationOptions
from bloxopt.simulation.options import PhaseChange, Progress, RoundEnd

BAD_FILES = {
    "[simulation]\nrond_seconds = 60": "simulation.rond_seconds: unknown key; did you mean 'round_seconds'?",
    "[simulatin]\nseed = 1": "simulatin: unknown key; did you mean 'simulation'?",
    "[zzz]": "zzz: unknown key; known are trace, generate, cluster, policy, admission, solver",
    "[trace]\nname = 'gavel-100'\nwhere = {max_gpu = 1}": "trace.where.max_gpu: unknown key; did you mean 'max_gpus'?",
    "[failures]\noutages = [{nod = 'a', start = 1.0}]": (
        "failures.outages.0.node: missing (and 1 more)",
        "failures.outages.0.nod: unknown key; did you mean 'node'?",
    ),
    "[simulation]\nround_seconds = '60'": "simulation.round_seconds: is '60', must be a number",
    "[simulation]\nround_seconds = -1": "simulation.round_seconds: is -1, must be greater than 0",
    "[simulation]\nround_seconds = nan": "simulation.round_seconds: is nan, must be a finite number",
    "[simulation]\nseed = 1.5": "simulation.seed: is 1.5, must be a whole number",
    "[simulation]\nseed = true": "simulation.seed: is True, must be a whole number",
    "[simulation]\nprogress = 'exactly'": "simulation.progress: is 'exactly', must be 'exact', 'whole_seconds', ",
    "[simulation]\npreset = 'gavl'": "simulation.preset: unknown preset 'gavl': did you mean 'gavel'?",
    "[simulation]\nplacement = 'first-fit'": "simulation.placement: unknown placement 'first-fit': did you mean",
    "[simulation]\nselector = 'priority'": "simulation.selector: unknown selector 'priority': did you mean",
    "policy = 'max_min_farness'": "policy.name: unknown policy 'max_min_farness': did you mean 'max_min_fairness'?",
    "[solver]\nname = 'ortools:glob'": "solver.name: unknown solver 'ortools:glob': did you mean 'ortools:glop'?",
    "[solver]\ntime_limit = 0": "solver.time_limit: is 0, must be greater than 0",
    "trace = 'gavel-10'": "trace.name: unknown trace 'gavel-10': did you mean 'gavel-1",
    "[trace]\nname = 'gavel-15'\nformat = 'gavell'": "trace.format: unknown trace format 'gavell': did you mean",
    "[trace]\nload = 2": "trace: needs either name (a trace of `bloxopt traces`) or path (a file)",
    "[trace]\nname = 'gavel-15'\ngpu_demand = {x = 1}": "trace.gpu_demand: needs whole numbers of GPUs as keys",
    "[trace]\nname = 'gavel-15'\nelastic_range = [1]": "trace.elastic_range: is [1]: needs two numbers of GPUs",
    "trace = 3": "trace: is 3, must be text or a table",
    "[generate]\nnum_jobs = 10": "generate: needs either jobs_per_hour or interarrival",
    "[generate]\njobs_per_hour = 10": "generate.num_jobs: missing",
    "[cluster]\nnodes = '8xV100'\npath = 'a.csv'": "cluster: has both nodes and path: keep one",
    "[failures]\nmean_seconds_to_repair = 9": "failures: needs both mean_seconds_between_failures and",
    "[output]\nformats = ['bmp']": "output.formats.0: is 'bmp', must be 'png', 'svg' or 'pdf'",
    "[compare]\nseeds = []": "compare.seeds: is [], must list at least one value",
    "[compare]\npolicies = ['fifo', 'fifo']": "compare.policies: lists 'fifo' twice",
    "[compare]\nsolvers = ['highs', 'higs']": "compare.solvers.1: unknown solver 'higs': did you mean 'highs'?",
    "[trace]\nname = 'gavel-15'\ndeadlines = [1.5, 0.5]": "trace.deadlines: is [1.5, 0.5]: needs two multiples of the",
    "[trace]\nname = 'gavel-15'\nelastic_range = [4, 1]": "trace.elastic_range: is [4, 1]: needs two numbers of GPUs",
    "[trace]\nname = 'gavel-15'\ngpu_demand = {1 = 0}": "trace.gpu_demand: all weights are 0",
    "[trace]\nname = 'gavel-15'\njob_types = {a = 0}": "trace.job_types: all weights are 0",
    "[trace]\nname = 'gavel-15'\nstart = 10\nend = 5": "trace.end: is 5, must be greater than start, which is 10",
    "[trace]\nname = 'gavel-15'\npath = 'a.csv'": "trace: has both name and path: keep one",
    "[trace]\nname = 'gavel-15'\nwhere = {tenant = 3}": "trace.where.tenant: is 3, must be text or a list",
    "[trace]\nname = 'gavel-15'\nwhere = {tenant = ['a', 3]}": "trace.where.tenant.1: is 3, must be text",
    "[trace]\npath = ''": "trace.path: is '', must not be empty",
    "cluster = 3": "cluster: is 3, must be text or a table",
    "policy = ['fifo']": "policy: is ['fifo'], must be text or a table",
    "simulation = 3": "simulation: is 3, must be a table",
    "[generate]\nnum_jobs = 1\njobs_per_hour = 1\ninterarrival = 1": "generate: has both jobs_per_hour and interar",
    "[generate]\nnum_jobs = 1\njobs_per_hour = 1\ndurations = []": "generate.durations: is [], must be text or a num",
    "[generate]\nnum_jobs = 1\njobs_per_hour = 1\ndurations = -1": "generate.durations: is -1, must be greater than 0",
    "[generate]\nnum_jobs = 1\njobs_per_hour = 1\ngpu_counts = {1 = 0}": "generate.gpu_counts: all weights are 0",
    "[generate]\nnum_jobs = 1\njobs_per_hour = 1\ngpu_counts = true": "generate.gpu_counts: is True, must be text or",
    "[generate]\nnum_jobs = 1\njobs_per_hour = 1\ntenants = {a = 0}": "generate.tenants: all weights are 0",
    "[failures]\noutages = [{node = 'a', start = 5, end = 1}]": "failures.outages.0.end: is 1, must be greater than",
    "[output]\nfolder = ''": "output.folder: is '', must not be empty",
    "[output]\nplots = 1": "output.plots: is 1, must be true or false",
    "[trace": "not valid TOML: ",
    "a = 1\na = 2": "not valid TOML: ",
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.items())
def test_what_is_wrong_with_a_file_is_said_by_file_key_and_value(tmp_path, text, message):
    file = tmp_path / "experiment.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_experiment(file)
    messages = (message,) if isinstance(message, str) else message
    assert any(f"{file}: {expected}" in str(error.value) for expected in messages), str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none.toml: no such experiment file"):
        load_experiment(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_experiment(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary.toml: not an experiment file: not UTF-8 text"):
        load_experiment(tmp_path / "binary.toml")


def test_a_string_stands_for_the_table_it_names(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text('trace = "gavel-15"\ncluster = "4xV100"\npolicy = "fifo"\nsolver = "highs"\n')
    short = load_experiment(file)
    file.write_text(
        '[trace]\nname = "gavel-15"\n[cluster]\nnodes = "4xV100"\n[policy]\nname = "fifo"\n[solver]\nname = "highs"\n'
    )
    assert load_experiment(file) == short


def test_paths_are_relative_to_the_file(tmp_path, monkeypatch):
    file = tmp_path / "experiment.toml"
    file.write_text('trace = "jobs.csv"\ncluster = "nodes.toml"\n[compare]\ntraces = ["other.csv", "gavel-15"]\n')
    monkeypatch.chdir("/")
    experiment = load_experiment(file)
    assert experiment.trace.path == str(tmp_path / "jobs.csv")
    assert experiment.cluster.path == str(tmp_path / "nodes.toml")
    assert experiment.compare.traces == [str(tmp_path / "other.csv"), "gavel-15"]


def test_overrides_replace_values_and_keep_the_rest(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text('[trace]\nname = "gavel-15"\nload = 2.0\n[policy]\nname = "fifo"\n[simulation]\nseed = 3\n')
    overrides = {"trace": "gavel-96", "simulation.round_seconds": 60.0, "solver": "highs", "policy": "max_min_fairness"}
    experiment = load_experiment(file, overrides)
    assert (experiment.trace.name, experiment.trace.load) == ("gavel-96", 2.0)
    assert (experiment.simulation.seed, experiment.simulation.round_seconds) == (3, 60.0)
    assert experiment.solver.name == "highs"
    assert experiment.policy.name == "max_min_fairness"


def test_messages_name_the_option_where_the_value_came_from_one(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text('trace = "gavel-15"\n')
    labels = {"simulation.seed": "--seed"}
    with pytest.raises(ConfigError, match=re.escape("--seed: is -1, must be greater than or equal to 0")):
        load_experiment(file, {"simulation.seed": -1}, labels)


def test_a_trace_brings_its_cluster_and_the_seed_reaches_what_has_none():
    experiment = resolve(make_experiment({"trace": "gavel-15", "simulation": {"seed": 7}}))
    assert experiment.cluster.nodes == "8xV100+16xP100+24xK80"
    assert (experiment.trace.seed, experiment.solver.seed) == (7, 7)
    generated = {"generate": {"num_jobs": 5, "jobs_per_hour": 1, "seed": 2}, "cluster": "4xV100"}
    experiment = resolve(make_experiment({**generated, "simulation": {"seed": 7}}))
    assert experiment.generate.seed == 2


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "no trace: name one"),
        ({"trace": "jobs.csv"}, r"no cluster: trace file .*jobs.csv has no default one"),
        ({"generate": {"num_jobs": 1, "jobs_per_hour": 1}}, "no cluster: a generated trace has no default one"),
        (
            {"trace": "gavel-15", "generate": {"num_jobs": 1, "jobs_per_hour": 1}},
            r"both \[trace\] and \[generate\] are given",
        ),
    ],
)
def test_what_cannot_be_resolved_is_said_with_the_way_out(document, message):
    with pytest.raises(ConfigError, match=message):
        resolve(make_experiment(document))


def test_a_resolved_experiment_written_as_toml_reads_back_equal(tmp_path):
    document = {
        "trace": {
            "name": "gavel-96",
            "where": {"max_gpus": 2, "tenant": ["default"]},
            "gpu_demand": {"1": 0.5, "2": 1.0},
        },
        "policy": {"name": "fifo", "options": {}},
        "simulation": {"selector_options": {"type_order": ["v100"], "fill_each_type": True}, "restart_cost": 10.5},
        "failures": {"outages": [{"node": "node-0", "start": 10.0}, {"node": "node-1", "start": 1.0, "end": 2.0}]},
        "output": {"folder": "a b/ü"},
    }
    experiment = resolve(make_experiment(document))
    text = toml_text(experiment.document())
    assert make_experiment(tomllib.loads(text)) == experiment
    assert resolve(experiment) == experiment


def test_every_option_of_a_simulation_can_stand_in_a_file():
    # The preset's solver stands in [solver].
    assert {field.name for field in fields(SimulationOptions)} - {"solver"} <= set(SimulationSection.model_fields)


def test_none_in_a_table_of_options_is_no_value_where_an_option_may_have_none():
    def options_of(policy):
        experiment = make_experiment(
            {"trace": "gavel-15", "policy": policy, "simulation": {"selector": "exact", **limit}}
        )
        return make_policy(experiment.policy.name, experiment.policy.options), check_inputs([resolve(experiment)])

    limit = {"selector_options": {"time_limit": "none"}}
    made, _ = options_of({"name": "gittins", "options": {"quantum": "none"}})
    assert made.objective.order[0].quantum is None
    with pytest.raises(BloxoptError, match="default entity 'none'"):
        # A name that an option may have stays one.
        options_of({"name": "hierarchical", "options": {"entities": {"a": 1}, "default": "none"}})
    with pytest.raises(BloxoptError, match="backfill is 'none', must be true or false"):
        options_of({"name": "fifo", "options": {"backfill": "none"}})


@pytest.mark.parametrize(
    ("option", "values"),
    [("progress", get_args(Progress)), ("round_end", get_args(RoundEnd)), ("phase_change", get_args(PhaseChange))],
)
def test_every_value_of_an_option_can_stand_in_a_file(option, values):
    for value in values:
        section = make_experiment({"simulation": {option: value}}).simulation
        assert getattr(section, option) == value


@pytest.mark.parametrize("change", [{"deadlines": [1, 2]}, {"where": {"max_duration": 1e9}}, {"gpu_demand": {"1": 1}}])
def test_durations_on_the_gpus_of_a_trace_that_has_no_v100(change):
    """Where only a throughput table gives durations, ``trace.gpu_type`` says on which GPUs they are meant."""
    trace = {"name": "pollux-6-adaptive", "jobs": 1, **change}
    with pytest.raises(ConfigError, match="can"):
        check_inputs([resolve(make_experiment({"trace": trace}))])
    check_inputs([resolve(make_experiment({"trace": {**trace, "gpu_type": "T4"}}))])


def test_policies_may_be_named_as_the_published_systems_name_them():
    assert make_experiment({"policy": "fifo_perf"}).policy.name == "fifo_perf"


def test_every_list_of_a_comparison_is_an_axis():
    assert set(CompareSection.model_fields) == set(AXES)
