"""Writes the fitted numbers of presets/frameworks.json: run it from the repository's root after an accounting changes.

Two things are fitted, and nothing else in the product is:

- fragmentation, what the allocator holds besides live tensors: the median of
  reserved / allocated − 1 over the runs that report both;
- each framework's band: quartiles of measured / estimated − 1 over its runs
  that report reserved or device bytes.
"""

import json
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

from vram import presets
from vram.accounting import overheads
from vram.evidence import outcomes, percentile

FILE = Path(__file__).parent.parent / "presets" / "frameworks.json"
SCRIPT = "presets/evidence.jsonl, computed by tests/fit_overheads.py"


def fragmentation():
    """Reserved over allocated, less one, of the runs that report both."""
    readings = {}
    for run in presets.evidence():
        if run["rank"] in ("max", "unstated"):
            readings.setdefault(run["link"], {})[run["quantity"]] = run["bytes"]
    pairs = [r["reserved"] / r["allocated"] - 1 for r in readings.values() if {"reserved", "allocated"} <= r.keys()]
    return {"median": round(median(pairs), 3), "high": round(percentile(pairs, 0.9), 3), "runs": len(pairs)}


def band(framework):
    """How far measured runs lie from their estimates."""
    found = [o for o in outcomes(framework) if not o.reason and o.quantity in ("reserved", "device")]
    off = [o.measured / o.estimated - 1 for o in found]
    return {
        "low": round(percentile(off, 0.25), 3),
        "median": round(median(off), 3),
        "high": round(percentile(off, 0.75), 3),
        "ninety": round(percentile([abs(o.error) for o in found], 0.9), 3),
        "runs": len(off),
    }


def main():
    facts = json.loads(FILE.read_text(encoding="utf-8"))
    fitted = [name for name, row in facts.items() if "overheads" in row]
    for name in fitted:
        facts[name]["overheads"]["fragmentation"] = fragmentation() | {"source": SCRIPT}
    write(facts)
    for name in fitted:
        facts[name]["band"] = band(name) | {"source": SCRIPT}
        print(name, facts[name]["overheads"]["fragmentation"], facts[name]["band"])
    write(facts)


def write(facts):
    FILE.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    presets.frameworks.cache_clear()
    overheads.facts.cache_clear()


if __name__ == "__main__":
    main()
