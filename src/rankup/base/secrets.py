"""Secrets in texts of others: errors, tracebacks and logs that are shown or written down.

The standard library only: a user's script has this imported beside it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from . import urls

# Tokens that are known by their look: Hugging Face, GitHub, GitLab, OpenAI and the like, AWS.
TOKEN = re.compile(
    r"(hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|sk-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{16})"
)
_NAME = re.compile(
    r"(TOKEN|KEY|SECRET|PASSWORD|(^|_)(PASS|PASSWD|PASSPHRASE|CREDENTIALS?))$", re.IGNORECASE
)
_SHORTEST = 8  # characters: what is shorter stands in any text by chance

# In a text that is only shown, a word too much that is hidden does no harm.
_ALIKE = re.compile(
    r"\b(?:hf|api_org|github_pat|gh[pousr])_\w{8,}|\b(?:glpat|sk|xox[a-z])-[\w-]{12,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\beyJ[\w-]{8,2000}\.[\w.-]+"
)
_HEADER = re.compile(
    r"((?:proxy-)?authorization['\"]?\s*[:=]\s*b?['\"]?)(?:(\w+\s+)[^\s'\",]+|[^\s'\",]+)",
    re.IGNORECASE,
)
# With a digit or a `=`, as any token has and a word behind "bearer" has not.
_SCHEME = re.compile(r"\b(bearer|basic)(\s+)(?=\S{0,200}[\d=])[\w+/=.~-]{8,}", re.IGNORECASE)
_NAMED = re.compile(
    r"((?<![a-z])(?:token|secret|password|passwd|api[_-]?key|access[_-]?key)['\"]?\s*[:=]\s*"
    r"b?['\"]?)(?=[^\s'\"]{0,200}\d)[^\s'\"&,;)]{8,}",
    re.IGNORECASE,
)

# Options that are called so, of a command line. A key may be one of a dictionary, and a token one
# of a tokenizer: there the value has to look like a secret as well.
_PASSWORD = re.compile(r"^--?(\w+[-_])*(password|passwd|passphrase|secret)$", re.IGNORECASE)
_KEY = re.compile(r"^--?(\w+[-_])*(token|(api|access|secret)[-_]?key)$", re.IGNORECASE)
_LONG = 16  # characters


def values(environment: Mapping[str, str]) -> dict[str, str]:
    """The secret values among variables, each with the name of its variable.

    A value that is an existing path is none: `..._KEY` often names a file.
    """
    return {
        value: name
        for name, value in environment.items()
        if len(value) >= _SHORTEST and _NAME.search(name) and not os.path.exists(value)
    }


def redacted(text: str, environment: Mapping[str, str]) -> str:
    """The text without what is, or looks like, a secret: "..." stands in its place.

    URLs lose user, password and query; tokens go by their look and by the words before them; so do
    the values of variables of `environment` whose names say that they are secret.
    """
    for value in sorted(values(environment), key=len, reverse=True):
        text = text.replace(value, "...")
    text = urls.cleaned(text)
    text = _HEADER.sub(lambda found: f"{found[1]}{found[2] or ''}...", text)
    text = _SCHEME.sub(r"\1\2...", text)
    text = _NAMED.sub(r"\1...", text)
    return _ALIKE.sub(lambda found: f"{found[0][:3]}...", text)


def without(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The words of a command line without what is, or looks like, a secret.

    Beside what `redacted` hides, the value of an option that is called a token, key, secret or
    password: `--token X`, `--api-key=X`, `auth.password=X`.
    """
    found, hide = [], False
    for word in words:
        option, equals, _ = word.partition("=")
        named = _NAME.search(re.sub("[-.]", "_", option)) is not None
        named = named and bool(equals or option.startswith("-"))
        if hide and not word.startswith("-"):
            found.append("...")
        elif named and equals:
            found.append(f"{option}=...")
        else:
            found.append(redacted(word, environment))
        hide = named and not equals
    return found


def option_with_secret(words: Sequence[str]) -> str | None:
    """The first option whose value is a secret by the option's name: `--password X`, `--api-key=X`.

    A value that is an existing path is none.
    """
    for word, after in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if not equals:
            value = "" if after.startswith("-") else after
        looks = len(value) >= _LONG and any(letter.isdigit() for letter in value)
        named = _PASSWORD.match(option) or (looks and _KEY.match(option))
        if named and value and not os.path.exists(value):
            return option
    return None
