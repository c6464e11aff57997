"""`python -m isthmus.cli`."""

from isthmus.cli import main

if __name__ == "__main__":
    main(prog_name="isthmus")
