"""What everything stands on: checks of arguments, spaces, keyed randomness, matrices and stored files."""
