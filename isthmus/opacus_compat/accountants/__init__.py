"""Accountants under Opacus' names: each is a ledger with a way to read it."""

from isthmus.opacus_compat.accountants.accountant import (
    GaussianAccountant,
    IAccountant,
    PRVAccountant,
    RDPAccountant,
    create_accountant,
)

__all__ = ["GaussianAccountant", "IAccountant", "PRVAccountant", "RDPAccountant", "create_accountant"]
