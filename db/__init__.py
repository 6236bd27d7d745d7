"""Storage: tables, reads, writes, migrations. Of gemmtune's packages it imports only backends."""
