"""${message}"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None
# True if gemmtunes of the revision before work with what this makes: it adds tables, indexes, and columns that are
# nullable or have a default of the server's, and changes nothing else (docs/database.md).
keeps_older = False


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
