"""The ledger of training switches: the effects that it observes, and switches without the requested effect."""

import pytest
import tensorflow as tf
from test_stages import dvae_batch, gpt_batch
from test_trainer import trained_dvae
from tiny import tiny_run_config

from myxtts.config.checks import ConfigError
from myxtts.config.config import TrainingConfig
from myxtts.devices import machine
from myxtts.devices.machine import Processor
from myxtts.models.xtts import XTTS
from myxtts.training.loop import switches
from myxtts.training.loop.switches import count_products, settle_switches
from myxtts.training.loop.updates import UpdateRule
from myxtts.training.stages.dvae import DVAEObjective
from myxtts.training.stages.gpt import GPTObjective

FLOAT32 = XTTS
"""The real class, for tests that replace it."""


def ledger_of(corpus, folder, **training):
    """A trainer after two DVAE steps, and its recorder."""
    training = {"validate_every_steps": 9, **training}
    _, trainer, recorder = trained_dvae(corpus, folder, dvae={"max_steps": 2, "crop_seconds": 0.4}, training=training)
    return trainer, recorder


def test_ledger_shows_what_every_switch_does(tiny_corpus, tmp_path):
    training = dict(optimizations="aggressive", xla=True, precision="mixed_bfloat16", ema=0.9, strict=True)
    trainer, recorder = ledger_of(tiny_corpus, tmp_path, gradient_accumulation=2, **training)
    ledger = trainer.ledger
    assert recorder.ledgers == [ledger] and all(row.as_requested for row in ledger.values())
    precision_row = ledger["precision"]
    assert (precision_row.requested, precision_row.effective) == ("mixed_bfloat16 (given)", "mixed_bfloat16")
    # All but the codebook's distances and sums.
    assert "13 of 15 matrix products of the step in bfloat16" in precision_row.reason
    assert ledger["loss scaling"].effective == "off"
    assert (ledger["TF32"].requested, ledger["TF32"].effective) == ("auto (default)", "off")
    clipping = ledger["gradient clipping"]
    assert clipping.requested == "global norm 1" and clipping.effective.startswith("global norm ")
    assert (ledger["XLA"].requested, ledger["XLA"].effective) == ("on (given)", "on")
    assert ledger["weight averages"].effective == "0.9"
    assert ledger["gradient accumulation"].effective == "2"
    assert trainer.store.read_state(2)["ledger"] == [row._asdict() for row in ledger.values()]
    lines = str(ledger).splitlines()
    assert " ".join(lines[:2]).split() == ["optimization", "requested", "effective", "reason"]
    assert sum(not line.startswith(" ") for line in lines) == 1 + len(ledger)
    assert max(map(len, lines)) <= 80 and " ".join(precision_row.reason.split()[:4]) in str(ledger)


def test_ledger_reports_switches_without_effect(tiny_corpus, tmp_path, monkeypatch):
    # A model of another policy than the run's, averages that stand still, and no compiler.
    monkeypatch.setattr("myxtts.training.stages.base.XTTS", lambda config, parts, precision: FLOAT32(config, parts))
    monkeypatch.setattr(UpdateRule, "update_averages", lambda rule, step: None)
    monkeypatch.setattr(switches, "xla_refusal", lambda device: "libdevice is missing")
    trainer, _ = ledger_of(tiny_corpus, tmp_path, precision="mixed_float16", ema=0.5, xla=True, tf32=True)
    found = {name: (row.effective, row.as_requested) for name, row in trainer.ledger.items()}
    assert found["precision"] == ("float32", False)
    assert found["weight averages"] == ("frozen", False)
    assert found["XLA"] == ("off", False)
    assert found["TF32"] == ("off", False), "no CPU has it"
    assert "libdevice is missing" in trainer.ledger["XLA"].reason
    assert trainer.ledger["loss scaling"].effective.startswith("dynamic, now ")
    assert "! float32" in str(trainer.ledger)
    with pytest.raises(ConfigError, match="--strict: precision .*mixed_float16.*XLA .*on"):
        trainer.ledger.require()


def test_strict_run_ends_after_its_first_step(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(switches, "xla_refusal", lambda device: "libdevice is missing")
    with pytest.raises(ConfigError, match="XLA .*on"):
        ledger_of(tiny_corpus, tmp_path, xla=True, strict=True)
    assert not (tmp_path / "dvae").exists() or not list((tmp_path / "dvae").glob("step_*"))


@pytest.mark.parametrize(
    "requested, capability, flags, chosen",
    [
        ("auto", None, {"avx2"}, "float32"),
        ("auto", None, {"avx512_bf16"}, "mixed_bfloat16"),
        ("auto", (9, 0), (), "mixed_bfloat16"),
        ("auto", (8, 0), (), "mixed_bfloat16"),
        ("auto", (7, 5), (), "mixed_float16"),
        ("auto", (6, 1), (), "float32"),
        ("mixed_bfloat16", (7, 0), (), "float32"),
        ("mixed_bfloat16", (8, 6), (), "mixed_bfloat16"),
        ("mixed_float16", (6, 1), (), "mixed_float16"),
        ("mixed_float16", None, (), "mixed_float16"),
        ("mixed_bfloat16", None, {"avx2"}, "mixed_bfloat16"),
        ("float32", (9, 0), (), "float32"),
    ],
)
def test_precision_is_what_the_hardware_can(monkeypatch, requested, capability, flags, chosen):
    monkeypatch.setattr(machine, "_compute_capability", lambda device: capability)
    monkeypatch.setattr(machine, "read_processor", lambda: Processor("any", 2, None, frozenset(flags)))
    policy, reason = machine.choose_precision(requested, "/GPU:1" if capability else "/CPU:0")
    assert policy == chosen and reason


def test_precision_is_chosen_for_the_gpu_that_trains_and_not_for_an_older_one_beside_it(monkeypatch):
    capabilities = {"old": (6, 1), "new": (9, 0)}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: list(capabilities))
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda gpu: ["data", "spare"][: gpu == "old"])
    monkeypatch.setattr(
        tf.config.experimental, "get_device_details", lambda gpu: {"compute_capability": capabilities[gpu]}
    )
    chosen = [machine.choose_precision("auto", device)[0] for device in ("/GPU:0", "/GPU:1")]
    assert chosen == ["float32", "mixed_bfloat16"]


@pytest.mark.parametrize("tf32, allowed", [(None, True), (True, True), (False, False)])
def test_tf32_is_allowed_but_where_it_is_switched_off(tf32, allowed):
    try:
        assert settle_switches(TrainingConfig(tf32=tf32), None, "/CPU:0").tf32 is allowed
        assert tf.config.experimental.tensor_float_32_execution_enabled() is allowed
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)


SENSITIVE = set("Softmax LogSoftmax Rsqrt ArgMin SparseSoftmaxCrossEntropyWithLogits Mean SquaredDifference".split())
"""Operations of softmax, norms, codebook search and losses."""


@pytest.mark.parametrize("stage", ["gpt", "dvae"])
def test_softmax_norms_losses_and_codebook_search_stay_in_float32(stage):
    config = tiny_run_config()
    model = XTTS(config.model, parts=(stage,), precision="mixed_bfloat16")
    objective = GPTObjective(model, config) if stage == "gpt" else DVAEObjective(model)
    batch = (gpt_batch if stage == "gpt" else dvae_batch)(2)
    traced = tf.function(lambda b: objective.loss_sums(b, tf.constant([0, 0]))).get_concrete_function(batch)
    operations = traced.graph.get_operations()
    found = {op.type for op in operations} & SENSITIVE
    assert found >= ({"Softmax", "Rsqrt", "SparseSoftmaxCrossEntropyWithLogits"} if stage == "gpt" else {"ArgMin"})
    for op in operations:
        if op.type in SENSITIVE:
            assert op.inputs[0].dtype == tf.float32, op.name
    for losses in tf.nest.flatten(traced.structured_outputs):
        assert losses.dtype == tf.float32
    products = count_products(traced.graph)
    assert products["bfloat16"] > 4 * products["float32"]


def test_determinism_is_asked_of_tensorflow_and_seen():
    from tensorflow.python.framework import config  # the one way to turn it off again

    try:
        settle_switches(TrainingConfig(deterministic=True), tiny_run_config().model, "/CPU:0")
        with tf.Graph().as_default(), pytest.raises(RuntimeError, match="seed"):
            tf.random.uniform(())
    finally:
        config.disable_op_determinism()
