"""Completion: kubectl runs `kubectl_complete-tessera WORDS...` and reads one suggestion a line, then a directive."""

import argparse
import sys
from collections.abc import Container, Sequence
from typing import Final

from extender.kubectl.__main__ import parser
from extender.kubectl.api import Api, Unanswered, kubectl_of

NO_FILES: Final = ":4"  # of cobra: do not complete file names


def main() -> None:
    """Print the suggestions for the words so far, the last of which is being typed."""
    words = sys.argv[1:] or [""]
    print("\n".join([*suggestions(words), NO_FILES]))  # noqa: T201


def suggestions(words: Sequence[str], api: Api | None = None) -> list[str]:
    """Return what the last word may become."""
    before, last = [part for word in words[:-1] for part in _parts(word)], words[-1]
    commands = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))  # noqa: SLF001
    named = next((word for word in before if word in commands.choices), None)
    if named is None:
        return _starting(last, commands.choices)
    actions = commands.choices[named]._actions  # noqa: SLF001
    by_flag = {flag: action for action in actions for flag in action.option_strings}
    takes = {flag: action for flag, action in by_flag.items() if action.nargs != 0}
    if (previous := takes.get(before[-1])) is not None:
        if previous.dest == "namespace":
            return _starting(last, _of(api, before, "namespaces"))
        return _starting(last, previous.choices or ())
    if last.startswith("-"):
        return _starting(last, by_flag)
    free = next((a for a in actions if not a.option_strings and a.dest != "help"), None)
    if free is None or len(_free(before, takes)) > 1:  # the command itself, and its word
        return []
    return _starting(last, free.choices or _of(api, before, "pods"))


def _parts(word: str) -> list[str]:
    """Return `--flag=value` as two words."""
    return word.split("=", 1) if word.startswith("--") else [word]


def _free(words: Sequence[str], takes: Container[str]) -> list[str]:
    """Return the words that are neither flags nor what a flag takes."""
    return [
        word
        for before, word in zip(["", *words], words, strict=False)
        if not word.startswith("-") and before not in takes
    ]


def _starting(last: str, words: object) -> list[str]:
    return sorted(str(word) for word in words if str(word).startswith(last))  # type: ignore[attr-defined]


def _of(api: Api | None, before: Sequence[str], kind: str) -> list[str]:
    """Return names that the API server knows; none if it does not answer."""
    flags = [flag for name in ("--context", "--kubeconfig") if name in before for flag in _flag(before, name)]
    api = api or kubectl_of(flags, "")
    try:
        namespace = next((_flag(before, name)[1] for name in ("-n", "--namespace") if name in before), None)
        path = f"/api/v1/namespaces/{namespace or api.namespace()}/pods" if kind == "pods" else "/api/v1/namespaces"
        return [str(item["metadata"]["name"]) for item in api.list(dict, path)]
    except Unanswered:
        return []


def _flag(before: Sequence[str], name: str) -> tuple[str, str]:
    at = list(before).index(name)
    return name, before[at + 1] if at + 1 < len(before) else ""


if __name__ == "__main__":
    main()
