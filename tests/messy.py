"""A table such as a newcomer has: mixed types, gaps, words, thousands, identifiers, dates, and text labels."""

import csv
from pathlib import Path

import numpy as np

CITIES = ["Zürich", "São Paulo", "Kraków", "Reykjavík", "Łódź", "東京", "Athens", "Oslo"]
NAMES = ["customer_id", "Alter", "sex", "city", "member", "income", "balance", "visits", "comment", "joined", "churned"]


def rows(n: int, seed: int = 0) -> list[dict[str, str]]:
    """Customers; whether one churned depends on income, visits, sex and one city, with some noise."""
    rng = np.random.default_rng(seed)
    collected = []
    for i in range(n):
        age, sex = rng.integers(18, 90), rng.choice(["female", "male"])
        city, member = rng.choice(CITIES), rng.random() < 0.4
        income, visits = rng.lognormal(10.3, 0.5), rng.poisson(5)
        score = 0.8 * (visits - 5) - (income - 33000) / 12000 + (sex == "male") + 1.5 * (city == "東京")
        churned = score + rng.logistic() * 0.5 > 0.3
        row = {
            "customer_id": f"C{seed:02d}-{i:06d}",
            "Alter": str(age),
            "sex": str(sex),
            "city": f" {city}" if i % 7 == 0 else str(city),
            "member": "yes" if member else "no",
            "income": f"{income:,.2f}",
            "balance": f"{rng.normal(0, 2000):.1f}",
            "visits": str(visits),
            "comment": f'said "{rng.integers(10**9)}", then asked about order number {rng.integers(10**9)}, and left',
            "joined": f"20{rng.integers(10, 24):02d}-{rng.integers(1, 13):02d}-{rng.integers(1, 29):02d}",
            "churned": "Ja" if churned else "Nein",
        }
        for name, gap in (("Alter", ""), ("sex", "?"), ("city", ""), ("income", "n/a"), ("balance", "")):
            if rng.random() < 0.03:
                row[name] = gap
        if rng.random() < 0.01:
            row["churned"] = ""
        collected.append(row)
    return collected


def write(path: Path, n: int, seed: int = 0, drop: tuple[str, ...] = (), separator: str = ",") -> Path:
    """The customers as csv, with a byte-order mark as spreadsheets write it."""
    names = [name for name in NAMES if name not in drop]
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore", delimiter=separator)
        writer.writeheader()
        writer.writerows(rows(n, seed))
    return path
