"""Two workers on this machine have the losses of one process."""

import json
import subprocess
import sys

import pytest
from tiny import tiny_run_config, untraced

from myxtts.devices.device_plan import plan_devices
from myxtts.distributed.launching import free_addresses, launch
from myxtts.runs.run import Run

STEPS = 2


@pytest.mark.slow
def test_two_workers_have_the_losses_of_one_process(tiny_corpus, tmp_path, two_stages, monkeypatch):
    every = dict(log_every_steps=STEPS, validate_every_steps=1, checkpoint_every_steps=STEPS, leave_out=())
    shape, steps = dict(layers=1, num_latents=2, dropout=0.0), {"max_steps": STEPS}
    data = dict(augment=True, num_workers=1, num_buckets=1)
    made_of = dict(model=shape, data=data, training=every, dvae=steps, gpt=steps)
    config = tiny_run_config(tiny_corpus, tmp_path / "one", **made_of)
    alone = Run(config, plan_devices(num_gpus=0))
    with untraced():
        assert alone.train()

    path = tmp_path / "config.json"
    settings = config.to_dict()
    settings["training"] |= {"checkpoint_dir": str(tmp_path / "two"), "leave_out": ["speaker", "decoder"]}
    path.write_text(json.dumps(settings))  # JSON is YAML
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    assert launch(2, ["train", "--config", str(path)]) == 0

    together = Run(tiny_run_config(tiny_corpus, tmp_path / "two", **made_of), alone.plan)
    assert together.history.keys() == alone.history.keys() == {"dvae", "gpt"}
    for stage, losses in alone.history.items():
        for found, expected in zip(together.history[stage], losses, strict=True):
            assert found == pytest.approx(expected, rel=1e-5)
    lone = ["--checkpoint-dir", str(tmp_path / "lone"), "--stage", "dvae", "--workers", *free_addresses(1)]
    assert subprocess.run([sys.executable, "-m", "myxtts", "train", "--config", str(path), *lone]).returncode == 0
