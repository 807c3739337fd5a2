"""Files that look like secrets: what must not travel with a job, since Ray shows that to all who see the dashboard.

Names and contents are looked at, archives are not opened. What looks like none may still be one.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from mi_core.confidential import secret_in
from pipelines.errors import UserError

NAMES = (
    "*.env", ".env*", "*secret*", "*credential*", "*passw*", ".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass",
    ".htpasswd", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.p8", "*.p12", "*.pfx", "*.ppk",
    "*.jks", "*.keystore", "*.kdbx", "*.gpg", "*.tfvars", "*.tfstate", "kubeconfig*", "service-account*",
    "service_account*", "*token", "*tokens", "*token.*", "*tokens.*", "*cookie*", "*.url",
)  # fmt: skip
"""Names of files, in small letters, under which secrets are kept; public keys (``*.pub``) are none."""


def check_travelling(files: Mapping[Path, Path]) -> None:
    """Raise UserError if a file looks like a secret, naming it; the files by the names under which they travel."""
    for name, path in files.items():
        small, content = name.name.lower(), path.read_bytes()
        named = [] if small.endswith(".pub") else [one for one in NAMES if fnmatchcase(small, one)]
        found = [f"is named like a secret ({one})" for one in named]
        found += [f"holds {kind}"] if (kind := secret_in(content)) else []
        if found:
            raise UserError(
                f"--include: {path} {found[0]}, and the dashboard of Ray shows what travels to all who see it: leave "
                "it out and set keys in the environment of the nodes; what is no secret needs another name or place"
            )
