"""How long an estimate takes: python tests/benchmark_estimate.py"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from vram import Scenario, estimate  # noqa: E402

LINKS = (
    "",
    "params=7B&gpus=8&zero=2",
    "gpus=8&zero=3",
    "model=llama-3-70b&gpus=128&tp=8&pp=4&zero=1",
    "model=llama-3-70b&gpus=256&tp=8&pp=4&zero=1&accum=16&recompute=sqrt",
    "model=qwen2.5-7b&seq=32768&attention=eager&recompute=full",
    "tuning=qlora&gpu=rtx-4090&batch=4",
    "tuning=lora&gpus=8&zero=3&optimizer=adamw-8bit",
    "gpus=8&pp=4&vpp=2&accum=16",
    "gpus=64&tp=8&sp=1&cp=2&zero=2&offload=optimizer",
    "framework=megatron&model=llama-3-70b&gpus=256&tp=8&pp=16&zero=1&accum=32",
    "framework=deepspeed&model=llama-3-70b&gpus=64&zero=3&recompute=full",
)


def median(call: Callable[[], object], times: int) -> float:
    """The median duration of a call, in seconds."""
    took = []
    for _turn in range(times):
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def main() -> None:
    """Print the medians."""
    estimates, readings = [], []
    for link in LINKS:
        scenario = Scenario.from_link(link)
        estimate(scenario)
        estimates.append(1e6 * median(lambda scenario=scenario: estimate(scenario), 1000))
        readings.append(1e6 * median(lambda link=link: Scenario.from_link(link), 1000))
        print(f"estimate {estimates[-1]:6.1f} µs   from_link {readings[-1]:6.1f} µs   {link or '(defaults)'}")
    print(f"median over the links: estimate {statistics.median(estimates):.1f} µs, ", end="")
    print(f"from_link {statistics.median(readings):.1f} µs")
    command = [sys.executable, "-m", "vram", LINKS[3]]
    whole = median(lambda: subprocess.run(command, cwd=ROOT, check=True, capture_output=True), 15)
    bare = median(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), 15)
    print(f"python -m vram LINK, the whole process: {1000 * whole:.0f} ms (bare Python {1000 * bare:.0f} ms), of 15")


if __name__ == "__main__":
    main()
