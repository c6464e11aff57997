"""What docs/engine.md says to be refused is."""

import pytest
import torch


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
