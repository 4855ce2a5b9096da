"""The ablation: every variant lacks exactly what its name says."""

from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.ablation import VARIANTS
from scoring.policies.binpack import Binpack
from scoring.workload import Workload

TERMS = ("fragments", "filled", "stranded", "hinges")


def test_each_variant_lacks_its_own_term() -> None:
    """Where CPU is half scarce every weight is at work, and a variant has one less."""
    whole = Binpack(Workload()).weights(0.5, 8000.0)
    for name, term in (("no fragments F", "fragments"), ("no filled S", "filled"), ("no stranded C", "stranded")):
        weights = VARIANTS[name](Workload()).weights(0.5, 8000.0)
        differ = [f for f in TERMS if getattr(weights, f) != getattr(whole, f)]
        assert differ == [term]
        assert getattr(weights, term) == 0
    assert VARIANTS["no hinges"](Workload()).weights(0.5, 8000.0).hinges == ()
    assert VARIANTS["no hosts H"](Workload()).host_price == 0
    assert VARIANTS["no capability sigma"](Workload()).capability == 0


def test_the_command_prints_a_row_for_each() -> None:
    """On the synthetic trace, with one seed."""
    said = CliRunner().invoke(app, ["ablation", "--seeds", "1", "--jobs", "1"], env={"TESSERA_TRACES": None})
    assert said.exit_code == 0
    for name in VARIANTS:
        assert said.output.count(name) == 3
