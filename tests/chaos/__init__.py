"""Faults on purpose: nothing that was released goes uncounted, no file is left corrupt, and the message is clear.

    python -m chaos                     every scenario, its runs and what went wrong; `make chaos`
    python -m chaos --scenario kill     one of them
    python -m chaos --seed 7            other moments

| module | what it has |
|---|---|
| `work` | trainings as users run them: the engine, `minimize`, an estimator, the command line |
| `child` | one of them in a fork, what it released (told through a pipe, as it happens) and how it ended |
| `judge` | what the files say afterwards |
| `scenarios` | the faults |
| `interrupts` | interrupts inside the ledger's code, after which the same process goes on |
"""
