from __future__ import annotations

from drawn_page import drawn

from headrace.app.views.offline_page import retrain_page
from headrace.ops.offline.experiment import Experiment, compare_metrics
from headrace.ops.offline.retrain import ComparedVersion, Fingerprints, Retrained
from headrace.schemas.records import BatchTrained

VERSIONS = tuple(ComparedVersion(version, 0, "a" * 64, "b" * 64, equal=version == 3) for version in (3, 4))


def test_an_experiment_is_shown_beside_its_source_with_the_way_to_look_further() -> None:
    source = [BatchTrained(metrics={"loss": 0.1, "kl_k3": 0.0}), BatchTrained(metrics={"loss": 0.3, "kl_k3": 0.002})]
    into = [BatchTrained(metrics={"loss": 0.5, "kl_k3": 0.0}), BatchTrained(metrics={"loss": 0.7})]
    metrics = compare_metrics(source, into)

    made = Experiment(
        "sums", "slower", "solver", 2, 4, comparable=True, fingerprint=Fingerprints({}, {}),
        settings=("trainer.clip_low: 0.2 -> 0.1",), metrics=metrics, versions=VERSIONS, ok=True,
    )  # fmt: skip

    shown = drawn(retrain_page(made, "headrace", "--run slower --data x")).splitlines()

    assert metrics.keys() == {"loss"}, "what one step did not tell is not compared"
    assert shown[0].startswith("Run slower holds versions 3 to 4, made from the batches of sums; 1 has other")
    assert "  trainer.clip_low: 0.2 -> 0.1" in "\n".join(shown)
    [loss] = [line.split() for line in shown if line.strip().startswith("loss")]
    assert loss == ["loss", "0.2000", "0.3000", "0.6000", "0.7000"]
    assert shown[-1].strip() == "headrace inspect --step 4 --run slower --data x"


def test_a_re_training_shows_which_versions_differ() -> None:
    again = Retrained(
        "sums", "solver", 2, 4, comparable=True, fingerprint=Fingerprints({}, {}), differing=(), versions=VERSIONS,
        ok=False,
    )  # fmt: skip

    shown = drawn(retrain_page(again, "headrace", "")).splitlines()

    assert "1 of 2 versions differ from the recorded versions, the first is version 4." in shown
    assert any("equal" in line for line in shown)
