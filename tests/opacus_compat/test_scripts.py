"""Scripts written for Opacus run after their imports are changed (what differs: test_differences.py)."""

import warnings
from typing import Any

import pytest

LONG = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from opacus import PrivacyEngine, GradSampleModule
from opacus.validators import ModuleValidator
from opacus.utils.batch_memory_manager import BatchMemoryManager

torch.manual_seed(0)
images, labels = torch.randn(96, 3, 8, 8), torch.randint(0, 4, (96,))
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
errors = ModuleValidator.validate(net, strict=False)
assert len(errors) > 0 and not ModuleValidator.is_valid(net)
net = ModuleValidator.fix(net)
assert ModuleValidator.is_valid(net)
optimizer = torch.optim.RMSprop(net.parameters(), lr=0.01)
train_loader = DataLoader(TensorDataset(images, labels), batch_size=32)
privacy_engine = PrivacyEngine(accountant="rdp")
model, optimizer, train_loader = privacy_engine.make_private_with_epsilon(
    module=net, optimizer=optimizer, data_loader=train_loader, epochs=2,
    target_epsilon=8.0, target_delta=1e-3, max_grad_norm=1.2,
)
assert isinstance(model, GradSampleModule) and optimizer.noise_multiplier > 0
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    model.train()
    with BatchMemoryManager(
        data_loader=train_loader, max_physical_batch_size=8, optimizer=optimizer
    ) as memory_safe_loader:
        for x, y in memory_safe_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
    epsilon = privacy_engine.get_epsilon(1e-3)
steps, state = sum(entry[2] for entry in privacy_engine.accountant.history), model._module.state_dict()
"""

SEQUENCES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from opacus import PrivacyEngine
from opacus.layers import DPLSTM, DPGRU, DPRNN
from opacus.layers.dp_multihead_attention import DPMultiheadAttention
from opacus.accountants import RDPAccountant
from opacus.accountants.utils import get_noise_multiplier

class Names(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.lstm = DPLSTM(8, 8, batch_first=True)
        self.attention = DPMultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        h, _ = self.lstm(self.embedding(x))
        h, _ = self.attention(h, h, h)
        return self.out(h[:, -1])

torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randint(0, 20, (60, 5)), torch.randint(0, 3, (60,))), batch_size=15)
sigma = get_noise_multiplier(target_epsilon=5.0, target_delta=1e-3, sample_rate=0.25, epochs=1, accountant="rdp")
model = Names()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
engine = PrivacyEngine(secure_mode=False)
model, optimizer, loader = engine.make_private(
    module=model, optimizer=optimizer, data_loader=data, noise_multiplier=sigma, max_grad_norm=1.0,
    poisson_sampling=True, clipping="flat", grad_sample_mode="functorch",
)
own = RDPAccountant()
optimizer.attach_step_hook(own.get_optimizer_hook_fn(sample_rate=loader.sample_rate))
for x, y in loader:
    optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
alphas = [1 + k / 10 for k in range(1, 100)]
epsilon, steps = own.get_epsilon(delta=1e-3, alphas=alphas), sum(entry[2] for entry in own.history)
"""

SCRIPTS = {"validator, memory manager": (LONG, 6), "layers, accountants": (SEQUENCES, 4)}


@pytest.mark.parametrize("name", list(SCRIPTS))
@pytest.mark.parametrize("package", ["isthmus.opacus_compat", "opacus"])
def test_a_script_runs(package: str, name: str) -> None:
    """The same text, with Opacus where it is installed: the scripts are real ones."""
    pytest.importorskip(package)
    script, steps = SCRIPTS[name]
    by_name: dict[str, Any] = {}
    with warnings.catch_warnings():
        if package == "opacus":  # which warns of its own hooks
            warnings.simplefilter("ignore")
        exec(script.replace("from opacus", f"from {package}"), by_name)
    assert 0 < by_name["epsilon"] < 10
    assert by_name["steps"] == steps
