"""The program around the library: tables, runs, reports, the command line and the demo."""
