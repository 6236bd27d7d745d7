"""A certificate of this machine's loopback, for tests with TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path, *names: str) -> tuple[Path, Path]:
    """A certificate and its key, for localhost, 127.0.0.1 and other names. Skips where openssl is missing."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    known = ",".join(["IP:127.0.0.1", *(f"DNS:{name}" for name in ("localhost", *names))])
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "1", "-subj", "/CN=localhost", "-addext", f"subjectAltName={known}",
         "-keyout", str(private), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, private
