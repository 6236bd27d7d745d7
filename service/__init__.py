"""How people and machines reach gemmtune: the command line, file formats, settings."""
