"""What of a deployment's files may be shown: in a diff, in a receipt.

What this project writes has a known form, so its secrets are found by name. A file that was edited by hand has any
form: of it only lines are shown that this project could have written, and what stood for a key is looked for in the
other files, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .redaction import HIDDEN, redact

_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|COOKIE|BEARER|AUTHORIZATION|(?<=_)(PWD|AUTH)(?![A-Z])", re.IGNORECASE
)
# Up to the last @, as a password may hold one; some write a proxy without its scheme.
_URL_LOGIN = re.compile(r"(?<=://)[^\s\"']*@|(?<![^\s\"'=,])[^/\s\"'@:=,]+:(?!//)[^\s\"']+@(?=[\w.-]+:\d)")
_BEARER = re.compile(r"(?<=\bBearer )[^\s\"']+|(?<=\bBasic )[^\s\"']{8,}", re.IGNORECASE)
_KEY_ARGUMENT = re.compile(r"key", re.IGNORECASE)
# Lines as render_config and render_environment write them: a whole value on one line.
_CONFIG_LINE = re.compile(
    r"[a-z0-9][a-z0-9-]*: (-?[0-9][0-9.eE+-]*|true|false|null|\"(?:[^\"\\\\]|\\\\.)*\"|\[.*\])"
)
_ENVIRONMENT_LINE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=(\"(?:[^\"\\\\]|\\\\.)*\"|[\w./:,@%+=-]*)")
_NOT_SHOWN = "# (lines that were edited by hand are not shown)"


def is_secret_name(name: str) -> bool:
    """Whether the name of a variable tells that its value is secret: ``HF_TOKEN``, ``DB_PASSWORD``."""
    return _SECRET_NAME.search(name) is not None


def shown_value(name: str, value: str) -> str:
    """A variable's value as it may be shown: not at all under a telling name, and without the login in a URL."""
    return HIDDEN if is_secret_name(name) else _BEARER.sub(HIDDEN, _URL_LOGIN.sub(f"{HIDDEN}@", value))


def secrets_of(
    keys: Mapping[str, str], environment: Mapping[str, Any], before: Mapping[str, str], config: str
) -> list[str]:
    """What must not be shown of a deployment: its keys, secret variables, and what stood for a key before.

    Args:
        keys: the API keys by name.
        environment: the variables that are to be written.
        before: the old files by name; empty texts for those that are not there.
        config: the name of the configuration file.
    """
    secrets = [key for key in keys.values() if key]
    secrets += [str(value) for name, value in environment.items() if value and is_secret_name(name)]
    follows = False
    for line in before.get(config, "").splitlines():
        if follows or _KEY_ARGUMENT.search(line):
            value = line.partition(":")[2].strip()
            secrets += [value, value.strip("\"'"), *re.findall(r"[^\s\"',:{}\[\]]+", line)]
        # A value may stand on the line below.
        follows = bool(re.search(r"key[\"']?\s*(:\s*[|>][-+0-9]*|:)?\s*$", line))
    names = ("admin-api-key", "admin_api_key")
    # Shorter than eight characters is no key, and would be found in every other word.
    return [secret for secret in secrets if len(secret) >= 8 and secret not in names]


def show(name: str, text: str, wanted: str, secrets: Iterable[str]) -> str:
    """One file of a deployment, old or new, as it may be shown.

    Args:
        name: its name; ``.yaml`` is the configuration, ``.env`` the environment, any other a program or a unit.
        text: its content.
        wanted: what is to be written, whose lines have a known form.
        secrets: from :func:`secrets_of`.
    """
    form = {".yaml": _CONFIG_LINE, ".env": _ENVIRONMENT_LINE}.get(name[name.rfind(".") :])
    known = set(wanted.splitlines())
    shown: list[str] = []
    hiding = False
    for line in text.splitlines():
        if line in known:
            hiding = False
        elif not hiding:
            # A value may go on over any number of lines, so nothing is shown up to the next line that is known.
            hiding = not form.fullmatch(line) if form else is_secret_name(line)
        if hiding and shown[-1:] != [_NOT_SHOWN]:
            shown.append(_NOT_SHOWN)
        elif not hiding:
            shown.append(_entry(line) if form else line)
    return redact("".join(f"{line}\n" for line in shown), secrets)


def _entry(line: str) -> str:
    """A line of a configuration or an environment file, without a value that its name tells to be secret."""
    match = re.match(r"([\w-]+)(: |=)(.*)", line)
    if not match:
        return line
    name, between, value = match.groups()
    telling = _KEY_ARGUMENT.search(name) if between == ": " else is_secret_name(name)
    return f'{name}{between}"{HIDDEN}"' if telling else f"{name}{between}{shown_value('', value)}"
