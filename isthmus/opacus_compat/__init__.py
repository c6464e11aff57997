"""The names that scripts for Opacus import: change `from opacus` to `from isthmus.opacus_compat` and run them.

What the names mean here is in docs/engine.md, "Coming from Opacus"; what differs, and which names are missing, in
docs/migrating/opacus.md.  Names whose only use is to look at, or change,
what private training must keep to itself can be imported, and say so when they are used.
"""

import sys
from types import ModuleType

from isthmus.opacus_compat import names
from isthmus.opacus_compat.names import GradSampleModule
from isthmus.opacus_compat.names import OpacusEngine as PrivacyEngine

MODULES = {
    "accountants": "GaussianAccountant IAccountant PRVAccountant RDPAccountant create_accountant",
    "accountants.accountant": "IAccountant",
    "accountants.utils": "get_noise_multiplier",
    "data_loader": "DPDataLoader",
    "distributed": "DifferentiallyPrivateDistributedDataParallel",
    "grad_sample": "GradSampleModule",
    "layers": "DPGRU DPLSTM DPMultiheadAttention DPRNN",
    "layers.dp_multihead_attention": "DPMultiheadAttention",
    "layers.dp_rnn": "DPGRU DPLSTM DPRNN",
    "optimizers": "DPOptimizer",
    "schedulers": "ExponentialGradClip ExponentialNoise LambdaGradClip LambdaNoise StepGradClip StepNoise",
    "utils": "",
    "utils.batch_memory_manager": "BatchMemoryManager wrap_data_loader",
    "utils.module_utils": "are_state_dict_equal clone_module",
    "utils.uniform_sampler": "UniformWithReplacementSampler",
    "validators": "ModuleValidator",
    "validators.errors": "IllegalModuleConfigurationError ShouldReplaceModuleError UnsupportedError "
    "UnsupportedModuleError",
    "validators.module_validator": "ModuleValidator",
}
"""Opacus' modules, and the names that each of them has here."""


for _path, _listed in MODULES.items():
    _module = ModuleType(f"{__name__}.{_path}", f"The names of opacus.{_path}.")
    vars(_module).update({_name: vars(names)[_name] for _name in _listed.split()})
    sys.modules[_module.__name__] = _module
    _parent, _, _own = _module.__name__.rpartition(".")
    setattr(sys.modules[_parent], _own, _module)

__all__ = ["GradSampleModule", "PrivacyEngine", "utils"]
