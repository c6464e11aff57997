"""The one-line example runs, and says what it promises."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "private_table.py"


def test_the_script(tmp_path: Path) -> None:
    model = str(tmp_path / "model.safetensors")
    command = [sys.executable, "-W", "error", str(SCRIPT), "--epsilon", "3", "--save", model]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    scores = re.search(r"private ([\d.]+), not private ([\d.]+), always benign ([\d.]+)", process.stdout.split(":")[1])
    assert scores is not None
    private, plain, guess = map(float, scores.groups())
    assert guess < 0.65 < 0.8 < private <= 1 and plain > 0.9
    assert "differentially private with epsilon = 3 and delta = 1e-05" in process.stdout
    assert process.stdout.endswith("read again it predicts the same: True\n")
    assert (tmp_path / "model.safetensors").stat().st_size > 0
