"""What the promise of a training rests on, in words."""

from __future__ import annotations

from isthmus.gradients.layers.passes import MEAN, MIXING, RANDOM, SHAPES

ASSUMPTIONS = (
    "one record belongs to one person",
    MIXING,
    "whether a step is taken does not depend on the private data beyond what was released",
    "model, sketch, clip, normaliser, number of rounds and learning rates are public choices",
)
FIXED = (
    "the number of steps was fixed before training, whatever was released: stopping on results costs a planned budget"
)
UNSEEN = (
    "training went on from a checkpoint without the ledger that it was begun with: nobody has seen what was released "
    "after the checkpoint was written, by the training that wrote it or by others that went on from it (one ledger "
    "file for all of them counts that)"
)
COLLATED = (
    "what collate_fn makes of a record does not depend on the other records of its batch (nor what __getitems__ of the "
    "dataset makes of it, where it reads a batch in one call), or the module and the loss make nothing of the "
    "difference (compared on first and on random batches, where the module is given the tensors of the batch; not "
    "proven): pad to a public length, or mask padding in the module and in the loss"
)
NORMALISER = "the number of records is public: it sets the sampling rate"
PUBLIC = "the public examples are not private records, and were chosen without looking at those"


def claims(*, seeded: bool, mean: bool, public: bool, collated: bool) -> tuple[str, ...]:
    """The assumptions of a training: with or without seeded noise, a loss that is a mean, public examples, and a
    collate function of the user's own.

    >>> RANDOM in claims(seeded=True, mean=True, public=False, collated=False)
    False
    >>> PUBLIC in claims(seeded=True, mean=True, public=True, collated=False)
    True
    """
    conditions = {RANDOM: not seeded, MEAN: mean, SHAPES: True, COLLATED: collated, NORMALISER: True, PUBLIC: public}
    return *ASSUMPTIONS, *(words for words, holds in conditions.items() if holds)
