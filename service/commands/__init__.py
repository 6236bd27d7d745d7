"""The commands, grouped by purpose; service.cli puts them together."""
