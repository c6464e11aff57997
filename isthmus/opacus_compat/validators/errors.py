"""What is raised where a module cannot be trained privately."""

from isthmus.base.validate import InvalidInput


class UnsupportedError(InvalidInput):
    """Something that private training does not take."""


class UnsupportedModuleError(UnsupportedError):
    """A module with a layer that has no per-example gradients."""


class ShouldReplaceModuleError(UnsupportedModuleError):
    """A layer that `fix` replaces."""


class IllegalModuleConfigurationError(UnsupportedModuleError):
    """A layer that private training takes with other options."""
