"""Estimates beside measured runs: ``python -m vram.evidence``.

The runs stand in ``presets/evidence.jsonl``, each a link with the bytes that
its source reports. A run that the accounting cannot say is listed with the
reason; none is dropped.
"""

from __future__ import annotations

import argparse
import sys
from statistics import median
from typing import NamedTuple
from urllib.parse import parse_qs

from . import Scenario, estimate, presets, shape_from_config
from .errors import ScenarioError
from .estimate import Estimate

__all__ = ["Outcome", "Summary", "evaluate", "outcomes", "percentile", "summaries"]

MEASURES = ("allocated", "reserved", "device")


class Outcome(NamedTuple):
    """One run: what was measured and what is estimated, or why nothing can be.

    ``error`` is (estimated − measured) / measured, without what the source's
    rounding explains; of ``oom`` and ``fits`` only the side counts, ``wrong``.
    ``source`` is the publication without the row in it; ``model`` the model's
    name or, where the run brings its own config, its ``model_type``.
    """

    id: str
    framework: str
    quantity: str
    source: str
    model: str
    tuning: str
    gpus: int
    measured: int
    estimated: int
    error: float
    wrong: bool
    reason: str

    @property
    def group(self) -> tuple[str, str]:
        """Runs that are not independent: one source, one model."""
        return self.source, self.model


class Summary(NamedTuple):
    """How far estimates are from so many runs: of the absolute errors the median and the 90th percentile; the bias."""

    framework: str
    quantity: str
    runs: int
    groups: int
    median: float
    of_groups: float
    high: float
    bias: float
    wrong: int


def evaluate(run: dict) -> Outcome:
    """Estimate one run."""
    query = {key: values[-1] for key, values in parse_qs(run["link"]).items()}
    gpus = int(query.get("gpus", 1))
    head = (
        run["id"],
        query.get("framework", ""),
        run["quantity"],
        ", ".join(run["source"].split(", ")[:2]),
        run["config"]["model_type"] if "config" in run else query.get("model", ""),
        query.get("tuning", "full"),
        gpus,
        run["bytes"],
    )
    try:
        shape = shape_from_config(run["config"]) if "config" in run else None
        found = estimate(Scenario.from_link(run["link"], shape=shape))
    except ScenarioError as error:
        return Outcome(*head, 0, 0.0, False, str(error))
    if run["quantity"] not in MEASURES:
        wrong = (found.device_bytes > run["bytes"]) != (run["quantity"] == "oom")
        return Outcome(*head, found.device_bytes, 0.0, wrong, "")
    estimated = _estimated(found, run["quantity"], run["rank"])
    off = estimated - run["bytes"]
    off = max(abs(off) - run["rounding_bytes"], 0) * (1 if off > 0 else -1)
    return Outcome(*head, estimated, off / run["bytes"], False, "")


def _estimated(found: Estimate, quantity: str, rank: str) -> int:
    """The estimate of the ranks that the source read."""
    if rank == "mean over GPUs":
        return round(sum(getattr(stage, quantity) for stage in found.stages) / len(found.stages))
    if rank == "first stage":
        return getattr(found.stages[0], quantity)
    if rank in ("last stage", "last rank"):
        return getattr(found.stages[-1], quantity)
    return max(getattr(stage, quantity) for stage in found.stages)


def outcomes(framework: str = "") -> list[Outcome]:
    """All runs, or those of one framework, estimated."""
    found = [evaluate(run) for run in presets.evidence()]
    return [outcome for outcome in found if framework in ("", outcome.framework)]


def percentile(values: list[float], part: float) -> float:
    """The value below which so much of a list lies, between neighbours in proportion."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summaries(found: list[Outcome]) -> list[Summary]:
    """Errors by framework and quantity; the sides of ``oom`` and ``fits`` together."""
    tables: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in found:
        if not outcome.reason:
            quantity = outcome.quantity if outcome.quantity in MEASURES else "oom/fits"
            tables.setdefault((outcome.framework, quantity), []).append(outcome)
    return [_summary(*key, rows) for key, rows in sorted(tables.items())]


def _summary(framework: str, quantity: str, rows: list[Outcome]) -> Summary:
    errors = [abs(row.error) for row in rows]
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(abs(row.error))
    return Summary(
        framework,
        quantity,
        len(rows),
        len(groups),
        median(errors),
        median(median(values) for values in groups.values()),
        percentile(errors, 0.9),
        median(row.error for row in rows),
        sum(row.wrong for row in rows),
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the table of errors, and with ``--rows`` each run."""
    parser = argparse.ArgumentParser(prog="python -m vram.evidence", description="Estimates beside measured runs.")
    parser.add_argument("--framework", default="", help="only the runs of this one")
    parser.add_argument("--rows", action="store_true", help="print each run, the farthest off first")
    parser.add_argument("--single", action="store_true", help="only runs on one GPU")
    options = parser.parse_args(arguments)
    found = [outcome for outcome in outcomes(options.framework) if not options.single or outcome.gpus == 1]
    print("framework  quantity    runs groups   median by group     90 %     bias  wrong")
    for row in summaries(found):
        head = f"{row.framework:<10} {row.quantity:<9} {row.runs:>6} {row.groups:>6}"
        errors = f"{row.median:>9.1%} {row.of_groups:>8.1%} {row.high:>8.1%} {row.bias:>+8.1%}"
        print(f"{head} {row.wrong:>42}" if row.quantity == "oom/fits" else f"{head}{errors}")
    if options.rows:
        for row in sorted((o for o in found if not o.reason), key=lambda o: -abs(o.error)):
            side = " wrong side" if row.wrong else ""
            print(f"{row.error:>+8.1%} {row.quantity:<9} {row.estimated / 1e9:>8.2f} {row.measured / 1e9:>8.2f} GB "
                  f"{row.framework} {row.id}{side}")  # fmt: skip
    without = [outcome for outcome in found if outcome.reason]
    if without:
        print(f"{len(without)} runs that cannot be said yet:")
        for row in without:
            print(f"  {row.id}: {row.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
