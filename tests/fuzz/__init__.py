"""Whatever bytes, texts, arguments and shapes come in: a result that keeps its laws, or a documented error.

    python -m fuzz                 every target in turn, coverage-guided (atheris); `make fuzz`
    python -m fuzz --target csv    one of them
    python -m fuzz --replay FILE   a reported input again

| module | what it attacks |
|---|---|
| `target` | what a target is, which errors are documented, how an input is run |
| `mutations` | changes of bytes, for the bounded runs in the tests |
| `edits` | changes of JSON trees, so that searches spend nothing on syntax |
| `loaders` | csv, libsvm, npz, parquet, schemas, configurations |
| `stores` | ledgers, checkpoints, models, folders of runs |
| `wires` | codecs, messages, orders, secure aggregation |
| `texts` | statements, plans, events, records of runs, codecs as JSON |
| `commands` | arguments of the command line |
| `shapes` | sets, sketches, lifts and clips, drawn by hypothesis |
| `guided` | one target under atheris, in a process of its own |
"""
