"""The command line in this process, and options that end soon."""

import json
from typing import Any

from click.testing import CliRunner, Result

from isthmus.cli import main
from isthmus.runs.config import load
from isthmus.runs.prepare import PreparedRows, prepare

QUICK = "--algorithm dp_gd --scale none --step 4 --max-iter 5".split()
"""Nothing is planned for long: such runs test the command, not the planner."""


def invoke(*arguments: str, code: int = 0) -> Result:
    """What a command prints, and that it ends with this code."""
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


def trained(*arguments: str, code: int = 0) -> dict[str, Any]:
    """What `isthmus train --json` says of a run."""
    return json.loads(invoke("train", *arguments, "--json", code=code).stdout)


def prepared(data: object, salt: str = "salt", **options: Any) -> PreparedRows:
    """The rows of a file as these settings prepare them."""
    settings, declared = load(None, {"data": str(data), **options})
    return prepare(settings, declared, salt=salt)
