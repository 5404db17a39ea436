"""The Evidence page, run in this process."""

from urllib.parse import parse_qsl

import pytest
from streamlit.testing.v1 import AppTest
from test_pages import charts, control, fine, opened, tables, texts

from vram import Scenario, presets
from vram.evidence import MEASURES, outcomes


def drawn(at: AppTest) -> list[str]:
    """Ids of the runs that the evidence page draws."""
    found = charts(at).get("evidence", {"data": []})
    return sorted(id for trace in found["data"] for id in trace.get("customdata", []))


def run_links() -> dict[str, dict[str, str]]:
    """What the link of each measured run says, by the run's id."""
    return {run["id"]: dict(parse_qsl(run["link"])) | {"config": run.get("config")} for run in presets.evidence()}


MEASURED = {run["id"] for run in presets.evidence() if run["quantity"] in ("allocated", "reserved", "device")}


@pytest.mark.parametrize(
    ("key", "value", "belongs"),
    [
        ("framework", "deepspeed", lambda link: link["framework"] == "deepspeed"),
        ("tuning", "lora", lambda link: link.get("tuning") == "lora"),
        ("gpus", "one", lambda link: link.get("gpus", "1") == "1"),
        ("model", "meta-llama/Llama-2-70b-hf", lambda link: link["model"] == "meta-llama/Llama-2-70b-hf"),
        ("model", "bloom", lambda link: (link["config"] or {}).get("model_type") == "bloom"),
    ],
)
def test_a_filter_leaves_the_runs_that_its_name_says(key, value, belongs):
    at = fine(opened("", "evidence.py"))
    everything = drawn(at)
    control(at, f"_evidence_{key}").set_value(value).run()
    wanted = [id for id, link in run_links().items() if belongs(link)]
    assert drawn(fine(at)) == sorted(id for id in everything if id in wanted)
    assert MEASURED & set(wanted)
    assert {o.split("  ")[-1] for o in control(at, "_evidence_run").options} == set(wanted)


def test_filters_that_leave_no_run_say_so():
    at = fine(opened("", "evidence.py"))
    control(at, "_evidence_model").set_value("bloom").run()
    control(at, "_evidence_tuning").set_value("qlora").run()
    assert "No run of this kind has been estimated." in texts(fine(at))
    assert not drawn(at) and not tables(at)
    control(at, "_evidence_tuning").set_value("").run()
    assert drawn(fine(at))


def test_the_picked_run_is_marked_and_falls_back_when_a_filter_removes_it():
    def marked(at: AppTest) -> list[float]:
        return charts(at)["evidence"]["data"][-1]["x"]

    at = fine(opened("", "evidence.py"))
    run = next(r for r in presets.evidence() if r["id"] in MEASURED and r["link"].startswith("framework=deepspeed"))
    control(at, "_evidence_run").set_value(run["id"]).run()
    assert run["source"] in texts(fine(at)) and marked(at) == [run["bytes"] / 10**9]
    control(at, "_evidence_framework").set_value("pytorch").run()
    assert run["source"] not in texts(fine(at))
    other = control(at, "_evidence_run").value
    assert dict(parse_qsl(next(r["link"] for r in presets.evidence() if r["id"] == other)))["framework"] == "pytorch"
    assert control(at, "_evidence_run").options[0].endswith(other)
    control(at, "_evidence_framework").set_value("").run()
    assert control(fine(at), "_evidence_run").value == other


def test_the_evidence_page_shows_every_run_and_its_failures():
    at = fine(opened("", "evidence.py"))
    found = outcomes()
    drawn = sum(len(trace["x"]) for trace in charts(at)["evidence"]["data"] if "customdata" in trace)
    assert drawn == sum(o.quantity in MEASURES and not o.reason for o in found)
    for o in found:
        if o.reason:
            assert o.id in texts(at)
    for run in presets.evidence():
        Scenario.parse_link(run["link"])


def test_a_run_names_its_source_and_opens_its_scenario():
    at = fine(opened("", "evidence.py"))
    worst = max((o for o in outcomes() if not o.reason), key=lambda o: abs(o.error))
    run = next(r for r in presets.evidence() if r["id"] == worst.id)
    assert run["source"].split(",")[0] in texts(at)
    assert any(link.proto.label == "Open its scenario" for link in at.get("page_link"))
