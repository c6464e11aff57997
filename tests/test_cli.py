"""The command line: help without torch, exit codes, the audit."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from isthmus import auditing
from isthmus.cli import main


def test_help_does_not_import_torch() -> None:
    check = "main(['--help'], standalone_mode=False); assert 'torch' not in sys.modules"
    code = f"import sys; from isthmus.cli import main; {check}"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "audit" in found.stdout and "demo" in found.stdout


def test_unknown_commands_are_refused() -> None:
    result = CliRunner().invoke(main, ["nonsense"])
    assert result.exit_code == 2 and "No such command" in result.output


def test_version() -> None:
    assert "isthmus" in CliRunner().invoke(main, ["--version"]).output


def test_the_audit_prints_json_and_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short audit of two cases: a sound one passes, a broken one is caught; a broken promise fails the audit."""
    sound, broken = auditing.private_pipelines(), auditing.broken_pipelines()
    monkeypatch.setattr(auditing, "private_pipelines", lambda: {"laplace": sound["compressive Laplace"]})
    monkeypatch.setattr(auditing, "recipe_pipelines", dict)
    monkeypatch.setattr(auditing, "broken_pipelines", lambda: {"published": broken["PRIVSGD as published"]})
    monkeypatch.setattr(auditing, "canary_runs", dict)
    result = CliRunner().invoke(main, ["audit", "--draws", "20000", "--json"])
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert found["pipelines by hand"]["laplace"]["verdict"] == "consistent"
    assert found["broken on purpose"]["published"]["verdict"] == "violation"
    bad = replace(broken["PRIVSGD as published"], sound=True)
    monkeypatch.setattr(auditing, "private_pipelines", lambda: {"bad": bad})
    assert CliRunner().invoke(main, ["audit", "--draws", "20000", "--json"]).exit_code == 1
