"""Digits with differential privacy: the loop, the loaders and the optimiser of a torch user, three lines private.

    python examples/mnist.py --data-root FOLDER_WITH_MNIST_NPZ -n 5 --sigma 1.0 -c 1.0 --lr 0.25 -b 256

Written for Opacus it would differ in one line, its import.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

from isthmus import PrivacyEngine

MEAN, STD = 0.1307, 0.3081


class SampleConvNet(nn.Module):
    """Two convolutions and two linear layers: 26,010 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        self.fc1 = nn.Linear(32 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2, 1)  # n x 16 x 13 x 13
        x = F.max_pool2d(F.relu(self.conv2(x)), 2, 1)  # n x 32 x 4 x 4
        return self.fc2(F.relu(self.fc1(x.view(-1, 32 * 4 * 4))))


def load(root: str, records: int | None) -> tuple[TensorDataset, TensorDataset]:
    """The training and the test set from `mnist.npz`: arrays x_train, y_train, x_test, y_test."""
    with np.load(Path(root) / "mnist.npz") as stored:
        arrays = {name: stored[name] for name in ("x_train", "y_train", "x_test", "y_test")}

    def part(which: str, count: int | None) -> TensorDataset:
        images = torch.from_numpy(arrays[f"x_{which}"][:count].reshape(-1, 1, 28, 28).astype(np.float32))
        return TensorDataset(
            (images / 255 - MEAN) / STD, torch.from_numpy(arrays[f"y_{which}"][:count].astype(np.int64))
        )

    return part("train", records), part("test", None)


def train(args, model, device, train_loader, optimizer, privacy_engine, epoch):
    model.train()
    criterion = nn.CrossEntropyLoss()
    losses = []
    for data, target in train_loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = criterion(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # the loss of private records is a number that no epsilon covers: it is shown where nothing is private
    words = f"Loss: {np.nanmean(losses):.6f}"
    if not args.disable_dp:
        words = f"epsilon = {privacy_engine.get_epsilon(args.delta):.2f}, delta = {args.delta}"
    print(f"Train Epoch: {epoch} \t{words}")


def test(model, device, test_loader):
    model.eval()
    loss, correct, count = 0.0, 0, len(test_loader.dataset)
    with torch.no_grad():
        for data, target in test_loader:
            output = model(data.to(device)).cpu()
            loss += F.cross_entropy(output, target, reduction="sum").item()
            correct += int((output.argmax(1) == target).sum())
    print(f"Test set: Average loss: {loss / count:.4f}, Accuracy: {correct}/{count} ({100 * correct / count:.2f}%)")
    return correct / count


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-b", "--batch-size", type=int, default=64, metavar="B", help="expected batch size")
    parser.add_argument("--test-batch-size", type=int, default=1024, metavar="TB")
    parser.add_argument("-n", "--epochs", type=int, default=10, metavar="N")
    parser.add_argument("-r", "--n-runs", type=int, default=1, metavar="R", help="runs to average over")
    parser.add_argument("--lr", type=float, default=0.1, metavar="LR", help="learning rate")
    parser.add_argument("--sigma", type=float, default=1.0, metavar="S", help="noise multiplier")
    parser.add_argument("-c", "--max-per-sample-grad_norm", type=float, default=1.0, metavar="C", help="clip bound")
    parser.add_argument("--delta", type=float, default=1e-5, metavar="D")
    parser.add_argument("--device", type=str, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--save-model", type=str, default=None, metavar="FILE", help="where to save the weights")
    parser.add_argument("--disable-dp", action="store_true", help="train without privacy")
    parser.add_argument("--secure-rng", action="store_true", help="noise from a cryptographic generator")
    parser.add_argument(
        "--data-root", type=str, default=os.environ.get("ISTHMUS_DATA", "."), help="folder of mnist.npz"
    )
    parser.add_argument("--records", type=int, default=None, help="train on the first so many records only")
    return parser.parse_args(argv)


def main(argv=None):
    args = arguments(argv)
    device = torch.device(args.device)
    train_set, test_set = load(args.data_root, args.records)
    test_loader = DataLoader(test_set, batch_size=args.test_batch_size, shuffle=True)
    results = []
    for _ in range(args.n_runs):
        train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
        model = SampleConvNet().to(device)
        optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0)
        privacy_engine = None
        if not args.disable_dp:
            privacy_engine = PrivacyEngine(secure_mode=args.secure_rng)
            model, optimizer, train_loader = privacy_engine.make_private(
                module=model,
                optimizer=optimizer,
                data_loader=train_loader,
                noise_multiplier=args.sigma,
                max_grad_norm=args.max_per_sample_grad_norm,
            )
        for epoch in range(1, args.epochs + 1):
            train(args, model, device, train_loader, optimizer, privacy_engine, epoch)
        results.append(test(model, device, test_loader))
    if len(results) > 1:
        print(f"Accuracy over {len(results)} runs: {100 * np.mean(results):.2f}% +- {100 * np.std(results):.2f}%")
    if args.save_model is not None:
        torch.save(model.state_dict(), args.save_model)
    return results


if __name__ == "__main__":
    main()
