"""What the promise of a training rests on, in words."""

from __future__ import annotations

ASSUMPTIONS = (
    "one record belongs to one person",
    "no code between the layers mixes the examples of a batch (tested on first and on random batches, not proven), and "
    "the loss is a mean (or sum) over them",
    "whether a step is taken does not depend on the private data beyond what was released",
    "model, sketch, clip, normaliser, number of rounds and learning rates are public choices",
)
RANDOM = (
    "random layers such as dropout, and random augmentation in the dataset, draw from secrets of the operating system, "
    "afresh in every pass and independently of the data; nothing random elsewhere in training follows a public seed"
)
FIXED = (
    "the number of steps was fixed before training, whatever was released: stopping on results costs a planned budget"
)
MEAN = (
    "the last digits of a record's gradient do not depend on how many records its batch has, though the mean loss "
    "divides by that number: a loss that is a sum (loss_reduction='sum') needs no such assumption"
)
SHAPES = (
    "the last digits of a record's activations and gradients do not depend on the shape of its batch, which decides "
    "how the tensor library multiplies matrices; the same product of the same numbers gives the same bits twice"
)
COLLATED = (
    "what collate_fn makes of a record does not depend on the other records of its batch, or the module and the loss "
    "make nothing of the difference (compared on first and on random batches, where the module is given the tensors of "
    "the batch; not proven): pad to a public length, or mask padding in the module and in the loss"
)
PIECES = (
    "what a pass does to an example does not depend on the physical batch that it is in, whose borders one record more "
    "would move: random layers draw for every example apart (dropout does), and nothing counts the passes"
)
KEPT = "these buffers or attributes of the module were changed by private passes; what they keep is NOT protected"
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
