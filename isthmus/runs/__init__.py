"""What stands behind the command line: tables, their public encoding, settings, the run folder, and the work itself.

A run is a folder.  Everything in a finished one was either public before, or paid for, or is marked as a leak in words:

| file | what |
|---|---|
| `settings.json` | every choice of the run, sealed by a hash |
| `schema.toml` | the public rules that turn the table into numbers |
| `plan.json` | what the planner expected, from public facts |
| `ledger` | every release, written before it was made |
| `checkpoint` | where a killed run goes on |
| `split.secret` | the salt that tells test rows apart: not public, and gone when the run is done |
| `model.safetensors` | the model: names and numbers, no pickle |
| `metrics.json` | measures on test rows, and at what price |
| `run.json` | the record that `isthmus report` reads |
"""
