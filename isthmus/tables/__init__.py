"""Tables: reading files, the public schema of their columns, and their encoding as numbers, row by row.

Nothing here learns from private rows: how an entry is read depends on what was declared and on the header, never on
another entry (`infer` guesses types where nobody declared any, and its callers say so).
"""
