"""The code of docs/engine.md runs, in order, as one programme."""

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "engine.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_every_block_runs() -> None:
    names: dict[str, object] = {}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"docs/engine.md, block {number}", "exec"), names)
    assert len(BLOCKS) >= 7
    assert torch.isfinite(next(names["module"].parameters())).all()  # type: ignore[attr-defined]


@pytest.mark.parametrize("option", ["noise_scheduler", "n_splits", "strict", "grad_clip_scheduler", "max_clipbound"])
def test_options_said_to_be_refused_are(option: str) -> None:
    from isthmus import InvalidInput, PrivacyEngine

    module = torch.nn.Linear(2, 2)
    data = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4).long())
    with pytest.raises(InvalidInput, match=option):
        PrivacyEngine().make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(data, batch_size=2),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            **{option: 1},
        )
