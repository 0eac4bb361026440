"""What the command line runs: each command as a function of a request, a folder and a console."""
