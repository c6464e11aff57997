"""Helpers under Opacus' names."""

from isthmus.opacus_compat.utils import batch_memory_manager, module_utils

__all__ = ["batch_memory_manager", "module_utils"]
