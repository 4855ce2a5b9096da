"""Flags win over the environment, the environment over the file; what is wrong is one sentence and status 2."""

from pathlib import Path
from typing import Any

import pytest

from contract.names import Resources
from extender.node import Rules
from extender.settings import Settings, read
from scoring.policies import DEFAULT, POLICIES


def file(folder: Path, text: str) -> str:
    """Return the path of a settings file."""
    path = folder / "tessera.yaml"
    path.write_text(text)
    return str(path)


def test_defaults() -> None:
    """Without a word the settings are what the documentation says."""
    settings = read([], {})
    assert settings == Settings.model_validate({})
    assert (settings.host, settings.port, settings.policy) == ("127.0.0.1", 8580, DEFAULT)
    assert settings.rules == Rules(policy=DEFAULT)
    assert settings.bind_seconds == 3.5


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    """The nearer a word is to the command line, the more it counts."""
    path = file(tmp_path, "policy: spread\nsharers: 7\nheadroom-mib: 100\n")
    environ = {"TESSERA_CONFIG": path, "TESSERA_SHARERS": "8", "TESSERA_PORT": "1", "HOME": "/"}
    settings = read(["--port", "2", "--allow-whole-gpus"], environ)
    assert (settings.policy, settings.sharers, settings.port) == ("spread", 8, 2)
    assert (settings.headroom_mib, settings.allow_whole_gpus) == (100, True)
    assert read(["--no-allow-whole-gpus"], {"TESSERA_ALLOW_WHOLE_GPUS": "true"}).allow_whole_gpus is False
    assert read(["--config", path], {"TESSERA_CONFIG": "nowhere"}).sharers == 7


def test_every_flag_is_a_setting_and_the_reverse(capsys: pytest.CaptureFixture[str]) -> None:
    """--help names every setting, with its default."""
    with pytest.raises(SystemExit) as ended:
        read(["--help"], {})
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in told for name in Settings.model_fields)
    assert "(default: 8580)" in told


def test_the_rules() -> None:
    """What a card can give comes out in whole numbers."""
    flags = [
        "--overcommit",
        "1.3",
        "--memory-resource",
        "a/m",
        "--utilization-resource",
        "a/u",
        "--share-resource",
        "a/s",
    ]
    rules = read([*flags, "--sharers", "10", "--seed", "3", "--policy", "fgd"], {}).rules
    assert (rules.overcommit, rules.sharers, rules.seed, rules.policy) == (1300, 10, 3, "fgd")
    assert rules.resources == Resources("a/m", "a/u", "a/s")


@pytest.mark.parametrize(
    ("argv", "environ", "sentence"),
    [
        pytest.param(
            ["--policy", "best"],
            {},
            f"policy is 'best': must be one of {', '.join(sorted(POLICIES))}.",
            id="an unknown policy",
        ),
        pytest.param(
            ["--overcommit", "0.5"],
            {},
            "overcommit is '0.5': Input should be greater than or equal to 1.",
            id="an overcommit below one",
        ),
        pytest.param(
            [],
            {"TESSERA_PORT": "many"},
            "port is 'many': Input should be a valid integer, unable to parse string as an integer.",
            id="a port that is no number",
        ),
        pytest.param(
            ["--config", "/nowhere/x.yaml"],
            {},
            "the settings file /nowhere/x.yaml cannot be read: No such file or directory.",
            id="a file that is not there",
        ),
        pytest.param(
            ["--share-resource", "nvidia.com/gpu-memory"],
            {},
            "memory_resource, utilization_resource and share_resource must differ.",
            id="one name for two resources",
        ),
        pytest.param(["--prefix", "a"], {}, None, id="a prefix without a slash"),
        pytest.param(["--log-level", "loud"], {}, None, id="an unknown log level"),
    ],
)
def test_what_is_wrong(
    argv: list[str], environ: dict[str, str], sentence: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A setting that is not allowed ends the process with one sentence."""
    with pytest.raises(SystemExit) as ended:
        read(argv, environ)
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert told.startswith("tessera-extender: ")
    assert told.count("\n") == 1
    if sentence is not None:
        assert told == f"tessera-extender: {sentence}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("polcy: spread", "there is no setting 'polcy'; the settings are ", id="an unknown setting"),
        pytest.param("- a", "must be a mapping of name: value.", id="a list"),
        pytest.param("{", "is not YAML: ", id="no YAML"),
        pytest.param("7", "must be a mapping of name: value.", id="a number"),
    ],
)
def test_what_is_wrong_in_the_file(tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is wrong is named, or its setting is."""
    with pytest.raises(SystemExit) as ended:
        read(["--config", file(tmp_path, text)], {})
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_an_empty_file(tmp_path: Path) -> None:
    """A file that says nothing changes nothing."""
    assert read(["--config", file(tmp_path, "# nothing\n")], {}) == Settings.model_validate({})


TLS = {"tls_cert": "c", "tls_key": "k"}


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"tls_cert": "c"}, "tls_cert and tls_key go together"),
        ({"tls_key": "k"}, "tls_cert and tls_key go together"),
        ({"tls_client_ca": "a"}, "tls_client_ca needs tls_cert and tls_key"),
        (TLS | {"tls_client_names": "x"}, "tls_client_names needs tls_client_ca"),
        (
            {"host": "0.0.0.0"},
            "host 0.0.0.0 is not loopback: set tls_cert, tls_key and tls_client_ca, or trust_network",
        ),
        (
            TLS | {"host": "extender.example"},
            "host extender.example is not loopback: set tls_cert, tls_key and tls_client_ca, or trust_network",
        ),
        ({"lead": "lease"}, "lead lease needs pod_name and pod_namespace"),
        ({"lead": "lease", "pod_name": "p"}, "lead lease needs pod_name and pod_namespace"),
        ({"lead": "follow", "cluster": "f"}, "lead follow needs an API server, and cluster is a file"),
    ],
)
def test_what_does_not_go_together(said: dict[str, str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A combination that would leave the verbs open, or a replica alone, is one sentence."""
    with pytest.raises(SystemExit):
        read([], {f"TESSERA_{name.upper()}": value for name, value in said.items()})
    assert capsys.readouterr().err == f"tessera-extender: {sentence}.\n"


@pytest.mark.parametrize(
    "said",
    [
        {"host": "localhost"},
        {"host": "127.0.0.2"},
        {"host": "::1"},
        {"host": "0.0.0.0", "trust_network": True},
        TLS | {"host": "::", "tls_client_ca": "a", "tls_client_names": "x"},
        TLS,
    ],
)
def test_where_the_verbs_may_be_served(said: dict[str, Any]) -> None:
    """On loopback as one likes, elsewhere to callers with a certificate, or to whoever the flag trusts."""
    assert Settings.model_validate(said)


def test_which_lease_says_who_leads() -> None:
    """Our own beside the pod, kube-scheduler's where it is by default, or what is said."""
    pod = {"pod_name": "p", "pod_namespace": "ns"}
    assert Settings.model_validate({"lead": "lease", **pod}).lease == ("ns", "tessera-extender")
    assert Settings.model_validate({"lead": "follow", **pod}).lease == ("kube-system", "kube-scheduler")
    assert Settings.model_validate({"lead": "follow", "lease_name": "n", "lease_namespace": "m"}).lease == ("m", "n")


def test_client_names() -> None:
    """A list with commas; nothing is nobody in particular."""
    said = {**TLS, "tls_client_ca": "a", "tls_client_names": "system:kube-scheduler, b ,"}
    assert Settings.model_validate(said).client_names == {"system:kube-scheduler", "b"}
    assert Settings.model_validate({}).client_names == frozenset()
