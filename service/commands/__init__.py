"""The commands, grouped by what they are for; service.cli puts them together."""
