"""Count parameters with the reference implementation, to record or check test data.

Needs torch and transformers; nothing is downloaded and nothing is allocated, as
models are built on the meta device.

    python tests/measure_parameters.py tests/data/configs/*.json
    python tests/measure_parameters.py --check tests/data/varied.json
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText, BertLMHeadModel


def measure(config: dict) -> dict:
    """Total parameters, tied tensors once, and those of them outside the language model."""
    config = copy.deepcopy(config)
    config.pop("quantization_config", None)
    kind = config.pop("model_type")
    read = CONFIG_MAPPING[kind].from_dict(config)
    with torch.device("meta"):
        if kind == "bert":
            model = BertLMHeadModel(read)
        elif type(read) in AutoModelForCausalLM._model_mapping:
            model = AutoModelForCausalLM.from_config(read)
        else:
            model = AutoModelForImageTextToText.from_config(read)
    model.tie_weights()
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    language = hasattr(read, "vision_config") and any("language_model" in name for name in sizes)
    vision = sum(
        size for name, size in sizes.items() if language and "language_model" not in name and "lm_head" not in name
    )
    total = sum(sizes.values())
    return {"cls": type(model).__name__, "total": total, "vision": vision, "text": total - vision}


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--check"]:
        records = json.loads(Path(arguments[1]).read_text())["models"]
        measured = [measure(record["config"]) for record in records]
        keys = ("total", "text")
        pairs = zip(records, measured, strict=True)
        wrong = [record for record, found in pairs if any(record.get(key, found[key]) != found[key] for key in keys)]
        print(f"{len(records)} configs, {len(wrong)} differ", *map(json.dumps, wrong), sep="\n")
        return bool(wrong)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for path in map(Path, arguments):
        try:
            found = measure(json.loads(path.read_text()))
        except Exception as error:  # the reference refuses a file in many ways
            found = {"total": None, "note": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps({path.stem: found}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
