"""Reads the facts in ``presets/``: models, GPUs, recipes, frameworks, worked examples."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .errors import Message, ScenarioError, quoted
from .families import shape_from_config
from .shape import Shape

__all__ = [
    "GPU",
    "ModelPreset",
    "examples",
    "frameworks",
    "generation",
    "gpu",
    "gpus",
    "model",
    "models",
    "notes",
    "recipes",
]

_FOLDER = Path(__file__).parent.parent / "presets"


def _read(name: str) -> dict:
    return json.loads((_FOLDER / name).read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class ModelPreset:
    """A published model: its id in links, its title, its names on the hub, its config."""

    id: str
    title: str
    names: tuple[str, ...]
    config: dict

    @property
    def shape(self) -> Shape:
        """The model's shape, read from its config once."""
        return _shape(self.id)


@dataclass(frozen=True, slots=True)
class GPU:
    """An accelerator: total memory as its driver reports it, and the links between GPUs of one machine."""

    id: str
    name: str
    memory_mib: int
    memory_source: str
    link: str
    link_gb_per_s: float
    domain: int
    link_source: str

    @property
    def capacity(self) -> int:
        """Total memory in bytes."""
        return self.memory_mib * 2**20


@cache
def models() -> dict[str, ModelPreset]:
    """All model presets by id."""
    rows = _read("models.json")["models"]
    return {row["id"]: ModelPreset(row["id"], row["title"], tuple(row["names"]), row["config"]) for row in rows}


@cache
def _shape(id: str) -> Shape:
    return shape_from_config(models()[id].config)


@cache
def _names() -> dict[str, str]:
    return {name.lower(): id for id, preset in models().items() for name in (id, *preset.names)}


def model(name: str) -> ModelPreset:
    """The preset of an id, or of a name on the hub; ScenarioError names the nearest ones."""
    id = _names().get(name.lower())
    if id is None:
        near = difflib.get_close_matches(name.lower()[:80], _names(), 3, 0.5) or ["llama-3-8b"]
        message = Message("{value} is not a model known here; try {near}.", value=quoted(name), near=", ".join(near))
        raise ScenarioError("model", name, message)
    return models()[id]


@cache
def gpus() -> dict[str, GPU]:
    """All GPU presets by id."""
    return {row["id"]: GPU(**row) for row in _read("gpus.json")["gpus"]}


def gpu(id: str) -> GPU:
    """The preset of a GPU; ScenarioError names the nearest ones."""
    if id not in gpus():
        near = difflib.get_close_matches(id.lower()[:80], gpus(), 3, 0.4) or ["a100-80gb"]
        message = Message("{value} is not a GPU known here; try {near}.", value=quoted(id), near=", ".join(near))
        raise ScenarioError("gpu", id, message)
    return gpus()[id]


@cache
def generation(id: str) -> str:
    """The architecture of a GPU, by its id: hopper, ampere and so on; empty where none is named."""
    known = frameworks()["generations"]["ids"]
    return next((name for name, starts in known.items() if id.startswith(tuple(starts))), "")


@cache
def recipes() -> dict[str, dict]:
    """Bytes per parameter: storage formats, precisions, optimizers."""
    return _read("recipes.json")


@cache
def frameworks() -> dict[str, dict]:
    """What differs from one accounting to the other and is not a formula."""
    return _read("frameworks.json")


@cache
def examples() -> list[dict]:
    """The article's worked examples: a link, a title, the numbers that the article gives."""
    return _read("examples.json")["examples"]


@cache
def evidence() -> list[dict]:
    """Measured runs: a link, a quantity and its bytes, how they were read, and the source."""
    lines = (_FOLDER / "evidence.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line]


@cache
def notes() -> list[dict]:
    """Points in which the article errs, by page and section."""
    return _read("notes.json")["notes"]
