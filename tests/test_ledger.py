"""The ledger of the training switches: what it observes, and that it notices what does not do what was asked for."""

import pytest
import tensorflow as tf
from test_trainer import Recorder, dvae_trainer, open_run

from myxtts.config.config import ConfigError, TrainingConfig
from myxtts.config.optimizations import PRESETS, SWITCHES, requested_switches
from myxtts.training import optimizations
from myxtts.training.averaging import WeightAverages
from myxtts.training.ledger import LedgerDifference, LedgerKeeper, count_clusters, count_products
from myxtts.training.optimizations import TrainingOptimizer, settle_switches
from myxtts.training.trainer import XTTSTrainer
from myxtts.utils import precision


def ledger_of(corpus, folder, **training):
    """A trainer after two DVAE steps."""
    dataset = open_run(corpus, folder, dvae={"max_steps": 2, "crop_seconds": 0.4},
                       training={"validate_every_steps": 9, **training})
    trainer, recorder = dvae_trainer(dataset), Recorder()
    trainer.train(dataset, [recorder])
    return trainer, recorder


def test_ledger_shows_what_every_switch_does(tiny_corpus, tmp_path):
    trainer, recorder = ledger_of(tiny_corpus, tmp_path, optimizations="aggressive", precision="mixed_bfloat16", ema=0.9,
                                  gradient_accumulation=2, strict=True)
    ledger = trainer.ledger
    assert recorder.ledgers == [ledger] and all(row.as_requested for row in ledger.rows)
    precision_row = ledger.row("precision")
    assert (precision_row.requested, precision_row.effective) == ("mixed_bfloat16 (given)", "mixed_bfloat16")
    # All but the codebook's distances and sums.
    assert "13 of 15 matrix products of the step in bfloat16" in precision_row.reason
    assert ledger.row("loss scaling").effective == "off"
    assert (ledger.row("XLA").requested, ledger.row("XLA").effective) == ("on (preset aggressive)", "on")
    assert "2 programs compiled so far, at most 2 for 1 shapes" in ledger.row("XLA").reason
    assert ledger.row("weight averages").effective == "0.9"
    assert ledger.row("gradient accumulation").effective == "2"
    assert trainer.store.read_state(2)["ledger"] == ledger.state()
    lines = str(ledger).splitlines()
    assert lines[0].split() == ["optimisation", "requested", "effective", "reason"] and len(lines) == 1 + len(ledger.rows)


def test_ledger_notices_switches_that_do_nothing(tiny_corpus, tmp_path, monkeypatch):
    # A model of another policy than the run's, averages that stand still, and no compiler.
    monkeypatch.setattr("myxtts.training.trainer.XTTS", lambda config, parts, precision: FLOAT32(config, parts))
    monkeypatch.setattr(WeightAverages, "update", lambda averages, step: None)
    monkeypatch.setattr(optimizations, "_xla_refusal", lambda device: "libdevice is missing")
    trainer, _ = ledger_of(tiny_corpus, tmp_path, precision="mixed_float16", ema=0.5, xla=True)
    found = {row.optimisation: (row.effective, row.as_requested) for row in trainer.ledger.rows}
    assert found["precision"] == ("float32", False)
    assert found["weight averages"] == ("standing still", False)
    assert found["XLA"] == ("off", False)
    assert "libdevice is missing" in trainer.ledger.row("XLA").reason
    assert trainer.ledger.row("loss scaling").effective.startswith("dynamic, now ")
    assert "! float32" in str(trainer.ledger)
    with pytest.raises(LedgerDifference, match="--strict: precision was to be mixed_float16.*XLA was to be on"):
        trainer.ledger.require()


def test_strict_run_ends_after_its_first_step(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(optimizations, "_xla_refusal", lambda device: "libdevice is missing")
    with pytest.raises(LedgerDifference, match="XLA was to be on"):
        ledger_of(tiny_corpus, tmp_path, xla=True, strict=True)
    assert not (tmp_path / "dvae").exists() or not list((tmp_path / "dvae").glob("step_*"))
