"""Rendering of local jobs: exact inputs, quoting and template errors."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_factory import SHELL_TEST, make_local_plan, make_pinned_test

from treehammer.errors import ConfigError, SourceError
from treehammer.submit.campaigns.job_rendering import copy_payload, render_jobs
from treehammer.submit.templates import template_engine
from treehammer.submit.templates.template_engine import render_template

HOSTILE_TEXT = 'a"b\\c\n[limits]\nwall_s = 0 #{{ 7 * 7 }} \x7f\x1b é 😀'


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_toml_string_round_trips(text: str) -> None:
    assert tomllib.loads(f"value = {template_engine.quote_toml(text)}")["value"] == text


def test_template_error_reports_invalid_text(tmp_path: Path) -> None:
    (tmp_path / "t.j2").write_text("x = {{ name | toml }}")
    with pytest.raises(ConfigError, match=r"t\.j2.*not valid text"):
        render_template("t.j2", {"name": "\udc80"}, folder=tmp_path)


def test_hostile_text_stays_a_value(tmp_path: Path) -> None:
    plan = replace(make_local_plan(tmp_path / "test", SHELL_TEST), campaign_name=HOSTILE_TEXT)
    job = replace(plan.jobs[0], label=HOSTILE_TEXT)
    environ = {"PATH": HOSTILE_TEXT, "LC_X=Y": "1", "SECRET_TOKEN": "s3cret"}
    (description,) = render_jobs(plan, _folder(tmp_path), [job], environ=environ)
    document = tomllib.loads(description.text)
    assert document["labels"]["campaign_name"] == HOSTILE_TEXT
    assert document["environment"]["PATH"] == HOSTILE_TEXT
    assert document["limits"] == {"wall_s": job.wall_limit_s, "cpus": 1}
    assert "s3cret" not in description.text


def test_description_lists_inputs(tmp_path: Path) -> None:
    plan = make_local_plan(tmp_path / "test", SHELL_TEST)
    descriptions = list(render_jobs(plan, _folder(tmp_path), environ={}))
    assert [d.job_id for d in descriptions] == [job.spec.job_id for job in plan.jobs]
    first = descriptions[0]
    assert set(first.inputs) == set(tomllib.loads(first.text)["job"]["inputs"])
    job = json.loads(first.inputs["job.json"].read_text())
    assert job["job_id"] == first.job_id
    copied = {p.name for p in first.inputs["payload"].iterdir()}
    assert copied == {"run.sh", "test.toml"}, "only files named by the test are sent"
    assert (first.inputs["payload"] / "run.sh").stat().st_mode & 0o100
    again = tmp_path / "again"
    again.mkdir()
    assert [d.text for d in render_jobs(plan, again, environ={})] == [d.text for d in descriptions]


def test_undefined_variable_error_names_template_and_job(tmp_path: Path) -> None:
    (tmp_path / "bad.j2").write_text("x = {{ job.nmae | toml }}")
    with pytest.raises(ConfigError) as caught:
        render_template("bad.j2", {"job": {"name": "n"}}, folder=tmp_path, where="job 17")
    message = str(caught.value)
    assert "bad.j2" in message
    assert "nmae" in message
    assert "job 17" in message


@pytest.mark.parametrize(
    "text, expected",
    [("{% if %}", "bad.j2:1"), ("{{ x | nofilter }}", "nofilter"), ("{{ 1 / 0 }}", "zero")],
)
def test_invalid_template_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "bad.j2").write_text(text)
    with pytest.raises(ConfigError, match=expected):
        render_template("bad.j2", {"x": 1}, folder=tmp_path)


def test_missing_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="template not found"):
        render_template("none.j2", {}, folder=tmp_path)


def test_changed_files_are_refused(tmp_path: Path) -> None:
    pinned = make_pinned_test(tmp_path / "test", SHELL_TEST)
    (tmp_path / "test" / "run.sh").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(SourceError, match="changed during"):
        copy_payload(pinned, tmp_path / "copy")
    (tmp_path / "test" / "run.sh").unlink()
    with pytest.raises(SourceError, match="cannot be copied"):
        copy_payload(pinned, tmp_path / "other")


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder
