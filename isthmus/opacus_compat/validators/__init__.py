"""`ModuleValidator` and its errors."""

from isthmus.opacus_compat.validators.module_validator import ModuleValidator

__all__ = ["ModuleValidator"]
