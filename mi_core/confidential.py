"""Patterns of secrets in a text. A text that matches none may still hold one."""

from __future__ import annotations

import re

_LOOKS = {
    "a private key": rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File-\d|AGE-SECRET-KEY-1"
    rb"|client-key-data:\s*[\w+/=]{40}",
    "a key of AWS": rb"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])"
    rb"|(?i:aws_secret_access_key|aws_session_token)[\"']?\s*[=:]\s*[\"']?[A-Za-z0-9/+]{40}",
    "a key of Google": rb"(?<![\w-])(?:AIza[\w-]{35}(?![\w-])|GOCSPX-[\w-]{28}|1//0[\w-]{30})",
    "a token of GitHub": rb"(?<!\w)(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{50})",
    "a token of Hugging Face": rb"(?<!\w)hf_[A-Za-z0-9]{30}",
    "a token of Slack": rb"(?<!\w)xox[abeoprs]-[\w-]{10}|hooks\.slack\.com/services/\w+/\w+/\w{20}",
    "a key of an API": rb"(?<![\w-])sk-(?:(?:admin|ant|or|proj|svcacct)-[\w-]{20}|(?=\w*\d)\w{20})"
    rb"|(?<!\w)[rs]k_(?:live|test)_[A-Za-z0-9]{20}"
    rb"|(?<!\w)(?:AC|SK)[0-9a-f]{32}(?!\w)|(?<!\w)dapi[0-9a-f]{32}|(?<!\w)SG\.[\w-]{22}\.[\w-]{40}"
    rb"|(?i:wandb)[^\n]{0,40}[\s\"'=][0-9a-f]{40}(?!\w)",
    "a token of GitLab": rb"(?<!\w)gl(?:agent|cbt|dt|ft|imt|oas|pat|ptt|rt|soat)-[\w-]{20}",
    "a token": rb"(?<!\w)[a-z][a-z0-9]{1,7}_(?=[A-Za-z]*\d)(?=[a-z0-9]*[A-Z])[A-Za-z0-9]{32}|(?<!\w)hvs\.[\w-]{24}",
    "a token of a package registry": rb"(?<!\w)pypi-AgE[\w-]{50}"
    rb"|_auth(?:Token)?\s*=\s*[\"']?[\w+/=-]{16}|\"auth\"\s*:\s*\"[\w+/=]{16}",
    "a key of Azure": rb"(?i:Account_?Key|SharedAccessKey|SharedAccessSignature)[\"']?\s*[=:]\s*[\"']?[\w+/%&=-]{20}"
    rb"|[?&;]sig=[\w%+/-]{30}",
    "a password in an address": rb"\w://[^/\s:@]*:[^/\s:@]+@",
    "a password": rb"(?im)^\W*(?:export\s+)?(?:\w*_)?(?:password|passwd|pwd|secret|token|api_?key)[\"']?\s*[=:]\s*"
    rb"[\"']?[^\s\"'(){}\[\].,$<>]{6,}[\"']?\s*,?$"
    rb"|(?<![a-z])(?:password|passwd|pwd|secret(?:_key)?|token|api[_-]?key)[\"']?\s*[=:]\s*"
    rb"([\"'])(?=[^\s\"']*\d)[^\s\"'(){}\[\],$<>]{8,}\1"
    rb"|\bmachine\s+\S+\s+login\s+\S+\s+password\s+\S",
    "a signed token": rb"(?<!\w)eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10}|(?i:bearer)\s+(?=[\w.~+/-]*\d)[\w.~+/-]{25}",
}


def secret_in(text: bytes) -> str:
    """The kind of secret that a text seems to hold, such as ``a private key``; empty: none."""
    return next((kind for kind, pattern in _LOOKS.items() if re.search(pattern, text)), "")
