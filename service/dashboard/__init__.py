"""What people look at: pages that use the public HTTP interface alone, their templates and their assets."""
