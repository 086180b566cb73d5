"""``bloxopt reproduce``: published results, ours beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bloxopt.cli import console
from bloxopt.cli.options import JsonOption

_NUMERIC = ["reference", "ours", "difference"]

SystemsArgument = Annotated[
    list[str] | None, typer.Argument(help="Systems to reproduce. Default: all of them.", metavar="[SYSTEM]...")
]
CsvOption = Annotated[Path | None, typer.Option("--csv", help="Also write the table to this CSV file.")]


def reproduce(systems: SystemsArgument = None, csv: CsvOption = None, json: JsonOption = False) -> None:
    """Run published experiments and compare every figure; exit code 1 if one differs and nothing explains it."""
    import pandas as pd

    from bloxopt.experiments.files import check_file, make_folder, write_atomically
    from bloxopt.reproduction import SYSTEMS, as_rows
    from bloxopt.reproduction import reproduce as run_all

    for name in systems or ():
        SYSTEMS.get(name)
    if csv is not None:
        check_file(csv)
    with console.progress_bar("reproducing", "runs") as advance:
        lines = run_all(systems or None, advance)
    rows = as_rows(lines)
    if csv is not None:
        make_folder(csv.absolute().parent)
        write_atomically(csv, lambda path: pd.DataFrame([vars(line) for line in lines]).to_csv(path, index=False))
    if json:
        console.print_json([vars(line) for line in lines])
    else:
        console.print_table(rows, columns=list(rows[0]), numeric=_NUMERIC)
    if any(line.verdict == "differs" for line in lines):
        raise typer.Exit(1)
