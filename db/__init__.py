"""What gemmtune remembers: tables, reads, writes, migrations. It knows the backends' values, nothing else."""
