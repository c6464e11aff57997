"""`python -m isthmus.app.cli`."""

from isthmus.app.cli import main

if __name__ == "__main__":
    main(prog_name="isthmus")
