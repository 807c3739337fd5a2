"""Files that look like secrets: what must not travel with a job, since Ray shows that to all who see the dashboard.

Names and contents are looked at, archives are not opened. What looks like none may still be one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from pipelines.errors import UserError

NAMES = (
    "*.env", ".env*", "*secret*", "*credential*", "*passw*", ".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass",
    ".htpasswd", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.p8", "*.p12", "*.pfx", "*.ppk",
    "*.jks", "*.keystore", "*.kdbx", "*.gpg", "*.tfvars", "*.tfstate", "kubeconfig*", "service-account*",
    "service_account*", "*token", "*tokens", "*token.*", "*tokens.*", "*cookie*", "*.url",
)  # fmt: skip
"""Names of files, in small letters, under which secrets are kept; public keys (``*.pub``) are none."""
CONTENTS = {
    "a private key": rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File-\d",
    "a key of AWS": rb"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])"
    rb"|(?i:aws_secret_access_key|aws_session_token)[\"']?\s*[=:]\s*[\"']?[A-Za-z0-9/+]{40}",
    "a key of Google": rb"(?<![\w-])AIza[\w-]{35}(?![\w-])",
    "a token of GitHub": rb"(?<!\w)(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{50})",
    "a token of Hugging Face": rb"(?<!\w)hf_[A-Za-z0-9]{30}",
    "a token of Slack": rb"(?<!\w)xox[abeoprs]-[\w-]{10}",
    "a key of an API": rb"(?<![\w-])sk-(?=[\w-]*\d)[\w-]{20}",
    "a token of GitLab": rb"(?<!\w)glpat-[\w-]{20}",
    "a key of Azure": rb"(?i:AccountKey|SharedAccessKey|SharedAccessSignature)\s*=\s*[\w+/%&=-]{20}",
    "a password in an address": rb"\w://[^/\s:@]+:[^/\s:@]+@",
    "a password": rb"(?im)^\W*(?:\w*_)?(?:password|passwd|pwd|secret|token|api_?key)[\"']?\s*[=:]\s*"
    rb"[\"']?[^\s\"'(){}\[\].,$<>]{6,}[\"']?\s*,?$",
    "a signed token": rb"(?<!\w)eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10}",
}
"""What secrets look like."""


def check_travelling(files: Mapping[Path, Path]) -> None:
    """Raise UserError if a file looks like a secret, naming it; the files by the names under which they travel."""
    for name, path in files.items():
        small, content = name.name.lower(), path.read_bytes()
        named = [] if small.endswith(".pub") else [one for one in NAMES if fnmatchcase(small, one)]
        found = [f"is named like a secret ({one})" for one in named]
        found += [f"holds {what}" for what, pattern in CONTENTS.items() if re.search(pattern, content)]
        if found:
            raise UserError(
                f"--include: {path} {found[0]}, and the dashboard of Ray shows what travels to all who see it: leave "
                "it out and set keys in the environment of the nodes; what is no secret needs another name or place"
            )
