"""gemmtune's interfaces: the command line, the HTTP service with its workers, file formats, settings."""
