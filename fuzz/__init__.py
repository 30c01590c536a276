"""Coverage-guided fuzzing: one target for each dialect, see `python -m fuzz --help`."""
