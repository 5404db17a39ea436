"""The command line: ``python -m vram "LINK"``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from . import Scenario, ScenarioError, estimate, presets, shape_from_config
from .config import read_config
from .estimate import Estimate
from .terms import by_group
from .units import amount, in_unit


def main(arguments: list[str] | None = None) -> int:
    """Print what a link's training run keeps in memory; 2 on a bad value."""
    parser = argparse.ArgumentParser(prog="python -m vram", description="What fills each GPU of a training run.")
    parser.add_argument("link", nargs="?", default="", help='a scenario, e.g. "model=llama-3-8b&gpus=8&zero=3"')
    parser.add_argument("--json", action="store_true", help="print the estimate as JSON")
    parser.add_argument("--config", metavar="FILE", help="take the model's shape from a Hugging Face config.json")
    options = parser.parse_args(arguments)
    try:
        shape = shape_from_config(read_config(Path(options.config).read_bytes())) if options.config else None
        found = estimate(Scenario.from_link(options.link, shape=shape))
    except (ScenarioError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found.to_dict(), indent=2) if options.json else _table(found))
    return 0


def _table(found: Estimate) -> str:
    scenario, unit = found.scenario, found.scenario.view.unit
    card = presets.gpu(scenario.hardware.gpu)
    stage = found.worst
    width = max(len(t.name) for t in stage.terms + stage.host)

    def row(name: str, count: int, note: str = "") -> str:
        return f"  {name:<{width}}  {in_unit(count, unit):>9} {unit:<3} {note}".rstrip()

    place = f"stage {stage.stage + 1} of {len(found.stages)}, the fullest"
    lines = [
        f"{scenario.model.preset}, {found.parameters:,} parameters, {found.trainable_parameters:,} trained",
        f"each of the {stage.gpus} GPUs of {place} ({scenario.framework}):",
        *(row(t.name, t.bytes, f"{100 * t.bytes / found.device_bytes:3.0f} %") for t in stage.terms),
        row("total", found.device_bytes),
        "by group: "
        + ", ".join(f"{name} {amount(size, unit)}" for name, size in by_group(stage.terms).items() if size),
        f"{found.verdict}: {amount(found.device_bytes, unit)} of {amount(found.capacity_bytes, unit)} ({card.name})",
    ]
    if found.host_bytes_per_node:
        lines.append(f"CPU memory or NVMe of each machine: {amount(found.host_bytes_per_node, unit)}")
    return "\n".join(lines + [f"note: {note}" for note in found.notes])


if __name__ == "__main__":
    sys.exit(main())
