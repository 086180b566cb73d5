"""``bloxopt plot`` and ``bloxopt generate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bloxopt.cli import console
from bloxopt.cli import options as o
from bloxopt.errors import ConfigError, ResultError


def plot(
    folders: Annotated[list[Path], typer.Argument(help="Result folders, or the folder of a comparison.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the plots. Default: the result folder.")
    ] = None,
    formats: o.FormatOption = None,
) -> None:
    """Draw the plots of one result, or overlay those of several."""
    from bloxopt.experiments import plots
    from bloxopt.experiments.files import check_writable, make_folder
    from bloxopt.experiments.store import load_result
    from bloxopt.experiments.style import FORMATS

    endings = formats or ["png"]
    for ending in endings:
        if ending not in FORMATS:
            raise ConfigError(f"--format: is {ending!r}, must be one of {', '.join(FORMATS)}")
    compared = len(folders) == 1 and (folders[0] / "comparison.json").exists()
    if len(folders) > 1 and output is None:
        raise ConfigError("several results: give --output, the folder for their plots")
    place = output or folders[0]
    if compared:
        results: Any = _compared(folders[0])
    else:
        results = [load_result(folder) for folder in folders]
    check_writable(place)
    make_folder(place)
    if compared or len(folders) > 1:
        written = plots.plot_comparison(results, place, endings)
    else:
        written = plots.plot_result(results[0], place, endings)
    for path in written:
        print(path)


def generate(
    file: Annotated[Path, typer.Argument(help="Trace to write: .csv, .csv.gz or .parquet.")],
    num_jobs: Annotated[int, typer.Option(min=1, help="Number of jobs.")] = 100,
    jobs_per_hour: Annotated[float | None, typer.Option(help="Poisson arrivals at this rate.")] = None,
    interarrival: Annotated[float | None, typer.Option(help="Or: seconds between arrivals.")] = None,
    durations: Annotated[str, typer.Option(help="Distribution of durations by name, or seconds.")] = "gavel",
    gpu_counts: Annotated[str, typer.Option(help="Distribution of GPU counts by name, or a number.")] = "gavel",
    job_types: Annotated[str | None, typer.Option(help="Mix of job types by name, such as gavel.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same trace.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
) -> None:
    """Generate a trace at random and write it to a file."""
    from bloxopt.experiments.reading import make_experiment, parse_value
    from bloxopt.experiments.run import generated_trace

    if file.exists() and not overwrite:
        raise ResultError(f"{file}: exists: choose another name, or replace it (--overwrite)")
    table = {
        "num_jobs": num_jobs,
        "jobs_per_hour": jobs_per_hour,
        "interarrival": interarrival,
        "durations": parse_value(durations),
        "gpu_counts": parse_value(gpu_counts),
        "job_types": job_types,
        "seed": seed,
    }
    given = {key: value for key, value in table.items() if value is not None}
    labels = {f"generate.{key}": f"--{key.replace('_', '-')}" for key in table}
    experiment = make_experiment({"generate": given}, labels={**labels, "generate": "generate"})
    trace = generated_trace(experiment)
    trace.write(file)
    console.note(f"{len(trace):,} jobs in {file}")


def _compared(folder: Path) -> dict[str, list[Any]]:
    """The finished runs of a comparison, by the label of their line."""
    import json

    from bloxopt.experiments.comparison import results_of_rows
    from bloxopt.experiments.files import reason

    path = folder / "comparison.json"
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["runs"]
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {reason(error)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ResultError(f"{path}: corrupt: {error}") from error
    return results_of_rows(rows, folder)
