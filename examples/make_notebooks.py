"""Write and run the two notebooks of this folder.

    pip install -e '.[notebooks]'
    python examples/make_notebooks.py

A notebook is a list of cells below: text in triple quotes, and code.  Both run in under a minute on one core, with data
that comes with scikit-learn.  What they show was computed when they were written.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
TABLE = [
    """# A private table

scikit-learn's breast cancer data: 30 measurements of 569 people, and whether a tumour is benign. We train a classifier
whose results protect every single one of these people, and look at what that costs.""",
    ">>>",
    """from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from isthmus import PrivateClassifier
from isthmus.planner import plan

X, y = load_breast_cancer(return_X_y=True, as_frame=True)
X, X_test, y, y_test = train_test_split(X, y, test_size=1 / 3, random_state=0, stratify=y)
X.shape""",
    """## Before anything is spent

The planner needs public facts only: how many records and columns there are, and how much privacy may be spent. It never
sees a record.""",
    ">>>",
    "plan(n=len(X), d=X.shape[1], epsilon=3.0)",
    """## The fit

`classes` is declared, because the study says what it asks. Nothing is known about the ranges of the columns, so a part
of the same budget buys them. The card under the model is its guarantee: what was released, how often, and with how
much noise.""",
    ">>>",
    "model = PrivateClassifier(epsilon=3.0, classes=[0, 1]).fit(X, y)\nmodel",
    """## What it reaches

The held-out records are declared public here, so that exact scores may be shown. Always answering "benign" is the
baseline.""",
    ">>>",
    """from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

plain = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
for name, score in {
    "private, epsilon 3": model.score(X_test, y_test),
    "not private": plain.score(X_test, y_test),
    "always benign": y_test.mean(),
}.items():
    print(f"{name:20} {score:.3f}")""",
    """## The statement, for whoever has to sign it""",
    ">>>",
    "print(model.privacy_.words())",
]
TORCH = [
    """# Private training in PyTorch

A small network for scikit-learn's handwritten digits. The loop is the usual one: `make_private_with_epsilon` takes the
module, the optimiser and the loader, and gives them back so that every step is clipped, noised and charged to a
ledger.""",
    ">>>",
    """import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isthmus import PrivacyEngine

torch.manual_seed(0)
X, y = load_digits(return_X_y=True)
X = torch.tensor(X / 16, dtype=torch.float32)
y = torch.tensor(y)
X, X_test, y, y_test = train_test_split(X, y, test_size=1 / 3, random_state=0)
len(X)""",
    """## Make it private

We ask for epsilon 4 over 30 epochs; the engine finds the noise that this takes.""",
    ">>>",
    """EPOCHS, DELTA = 30, 1e-5
engine = PrivacyEngine()
network = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
module, optimizer, loader = engine.make_private_with_epsilon(
    module=network,
    optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    data_loader=DataLoader(TensorDataset(X, y), batch_size=128),
    target_epsilon=4.0,
    target_delta=DELTA,
    epochs=EPOCHS,
    max_grad_norm=1.0,
)""",
    """## The loop

It does not change. Batches are drawn at random, so that their sizes vary, and an empty one is possible. The held-out
records are declared public, so that their accuracy may be shown after every epoch.""",
    ">>>",
    """criterion, accuracy = nn.CrossEntropyLoss(), []
for _ in range(EPOCHS):
    module.train()
    for images, labels in loader:
        optimizer.zero_grad()
        criterion(module(images), labels).backward()
        optimizer.step()
    module.eval()
    with torch.no_grad():
        accuracy.append((module(X_test).argmax(1) == y_test).float().mean().item())
print(f"accuracy on {len(y_test)} held-out records: {accuracy[-1]:.3f}")
print(f"epsilon spent: {engine.get_epsilon(DELTA):.2f}")""",
    ">>>",
    """import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(5, 2.5), dpi=80)
axes.plot(range(1, EPOCHS + 1), accuracy)
axes.set(xlabel="epoch", ylabel="accuracy", ylim=(0, 1));""",
    """## What is guaranteed

The statement counts every planned step. It says what was released, how often and with how much noise, and what it rests
on: read the assumptions before you publish the model.""",
    ">>>",
    "engine.statement(DELTA)",
]
NOTEBOOKS = {"private_table.ipynb": TABLE, "torch_training.ipynb": TORCH}


def cells_of(parts: list[str]) -> list[tuple[str, str]]:
    """("markdown" or "code", source) for each cell: code follows a mark."""
    marked = zip([""] + parts, parts, strict=False)
    return [("code" if before == ">>>" else "markdown", part) for before, part in marked if part != ">>>"]


def main() -> None:
    import nbformat
    from nbclient import NotebookClient

    for name, parts in NOTEBOOKS.items():
        made = nbformat.v4.new_notebook()
        made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        for i, (kind, source) in enumerate(cells_of(parts)):
            make = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
            made.cells.append(make(source, id=f"cell-{i}"))
        NotebookClient(made, timeout=600, resources={"metadata": {"path": str(HERE)}}).execute()
        for cell in made.cells:
            cell.metadata.clear()  # when a cell ran is of no use to a reader
        nbformat.write(made, HERE / name)
        print(f"wrote {name} ({(HERE / name).stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
