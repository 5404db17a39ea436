"""The plan of the house: arrows run one way, facts have sources, nothing lies around."""

import ast
import json
import re
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOUSE = {"app", "pages", "vram", "presets", "tests"}
ALLOWED = {"app.py", "pages", "vram", "presets", "tests", "requirements.txt", "README.md", "pyproject.toml", "LICENSE"}


def files_in(*folders):
    return [file for folder in folders for file in sorted(ROOT.glob(folder)) if file.is_file()]


VRAM = files_in("vram/**/*.py")
FORMULAS = files_in("vram/formulas/*.py")
PAGES = files_in("pages/*.py")
PARTS = files_in("pages/parts/**/*.py")
PRESETS = files_in("presets/*.json")


def each(files):
    return pytest.mark.parametrize("file", files, ids=lambda file: str(file.relative_to(ROOT)))


def imports(file):
    """Modules that a file imports, by full name, each with whether a function does it."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inside = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    package = file.relative_to(ROOT).parent.parts
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            home = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            base = home if node.level else node.module
            # What is imported may itself be a module.
            found += [(f"{base}.{alias.name}", node in inside) for alias in node.names]
    return found


def within(name, *packages):
    return any(name == package or name.startswith(package + ".") for package in packages)


@each(VRAM)
def test_the_formula_package_needs_only_the_standard_library_and_itself(file):
    for name, in_function in imports(file):
        top = name.partition(".")[0]
        sympy_when_asked = top == "sympy" and in_function and file.name == "working.py"
        assert top == "vram" or top in sys.stdlib_module_names or sympy_when_asked, name


@each(VRAM)
def test_the_formula_package_opens_no_connection(file):
    for name, _ in imports(file):
        assert not within(name, "socket", "ssl", "http", "urllib.request", "ftplib", "smtplib", "asyncio", "subprocess")


@each(FORMULAS)
def test_formulas_import_nothing(file):
    assert {name for name, _ in imports(file)} <= {"__future__.annotations"}


@each(PARTS)
def test_parts_of_pages_know_each_other_and_the_formula_package(file):
    for name, _ in imports(file):
        assert within(name, "pages.parts", "vram") or name.partition(".")[0] not in HOUSE, name


@each(PAGES)
def test_pages_know_their_parts_and_the_formula_package(file):
    for name, _ in imports(file):
        assert within(name, "pages.parts", "vram") or name.partition(".")[0] not in HOUSE, name


@each([*files_in("app.py"), *VRAM, *PAGES, *PARTS])
def test_nothing_imports_the_server_or_the_tests(file):
    for name, _ in imports(file):
        assert not within(name, "app", "tests"), name


def test_the_top_level_has_only_its_fixed_names():
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split()]
    names = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    assert {name for name in names if not any(fnmatch(name, pattern) for pattern in ignored)} <= ALLOWED


@each(PRESETS)
def test_every_fact_has_a_source(file):
    assert sourced(json.loads(file.read_text(encoding="utf-8")))


def sourced(value):
    """Whether a record says its source or the article's section, or else all records in it do."""
    if isinstance(value, list):
        return all(sourced(row) for row in value)
    if not isinstance(value, dict):
        return False
    if any((key.endswith("source") or key == "section") and value[key] for key in value):
        return True
    return all(sourced(row) for key, row in value.items() if key != "note")


def records(value):
    """All lists of records in a preset file."""
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        yield value
    for row in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from records(row)


@each(PRESETS)
def test_every_id_and_every_name_is_given_once(file):
    def only_once(pairs):
        keys = [key for key, _ in pairs]
        assert len(keys) == len(set(keys)), keys
        return dict(pairs)

    for rows in records(json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=only_once)):
        for key in ("id", "name"):
            given = [row[key].lower() for row in rows if key in row]
            assert len(given) == len(set(given))


def test_every_model_answers_to_its_own_names_only():
    models = json.loads((ROOT / "presets/models.json").read_text(encoding="utf-8"))["models"]
    names = [name.lower() for row in models for name in {row["id"], *row["names"]}]
    assert len(names) == len(set(names))
    assert len({row["title"] for row in models}) == len(models)


@each([file for file in PRESETS if file.name in ("models.json", "gpus.json")])
def test_every_id_needs_no_escape_in_a_link(file):
    for rows in records(json.loads(file.read_text(encoding="utf-8"))):
        assert all(re.fullmatch(r"[a-z0-9._-]+", row["id"]) for row in rows)


def test_at_least_30_gpus_and_52_models_are_known():
    gpus = json.loads((ROOT / "presets/gpus.json").read_text(encoding="utf-8"))["gpus"]
    models = json.loads((ROOT / "presets/models.json").read_text(encoding="utf-8"))["models"]
    assert len(gpus) >= 30
    assert len(models) >= 52
