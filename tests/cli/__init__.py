"""The command line as a script meets it."""
