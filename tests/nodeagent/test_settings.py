"""The agent's settings: flags, environment, and one sentence for what is wrong."""

from pathlib import Path

import pytest

from nodeagent.settings import Settings, read

GIVEN = {"TESSERA_AGENT_NODE": "n1", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


def test_in_a_pod_the_node_alone_need_be_said() -> None:
    """Everything else has a default; the API server is the cluster's own."""
    assert read([], GIVEN) == Settings("n1", "https://10.0.0.1:6443")
    six = read([], GIVEN | {"KUBERNETES_SERVICE_HOST": "fd00::1"})
    assert six.server == "https://[fd00::1]:6443"


def test_flags_win_over_the_environment() -> None:
    """Each setting by both ways, as its own type."""
    environ = GIVEN | {
        "TESSERA_AGENT_PORT": "1",
        "TESSERA_AGENT_ENFORCE": "false",
        "TESSERA_AGENT_PROC": "/host/proc",
    }
    said = read(["--port", "2", "--evict", "--interval", "0.5", "--server", "https://a"], environ)
    assert (said.port, said.enforce, said.evict, said.interval) == (2, False, True, 0.5)
    assert (said.proc, said.server) == (Path("/host/proc"), "https://a")


@pytest.mark.parametrize(
    ("argv", "environ", "sentence"),
    [
        ([], {}, "node is not given"),
        (["--node", "n"], {}, "server is not given"),
        (["--port", "x"], GIVEN, "port is 'x': must be a whole number."),
        (["--interval", "0"], GIVEN, "interval is '0': must be at least 0.1."),
        (["--interval", "nan"], GIVEN, "interval is 'nan': must be at least 0.1."),
        ([], GIVEN | {"TESSERA_AGENT_EVICT": "maybe"}, "evict is 'maybe': must be true or false."),
        (["--log-level", "loud"], GIVEN, "log_level is 'loud': must be one of debug"),
        (["--benign-xids", "13;31"], GIVEN, "benign_xids is '13;31': must be numbers"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    argv: list[str], environ: dict[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process ends with status 2, and names the setting, the value and what is allowed."""
    with pytest.raises(SystemExit) as ended:
        read(argv, environ)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("tessera-agent: ")
    assert sentence in said
    assert said.count("\n") == 1


def test_every_setting_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    """--help shows each flag with its meaning."""
    with pytest.raises(SystemExit):
        read(["--help"], {})
    said = capsys.readouterr().out
    for name in Settings.__dataclass_fields__:
        assert "--" + name.replace("_", "-") in said
