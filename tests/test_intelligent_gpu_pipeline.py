"""Behavior and output of Multi-GPU Mode and Single-GPU Buffered Mode: the real command on a tiny corpus.

Runs without a GPU: in a process with logical CPU devices.

    python -m unittest tests.test_intelligent_gpu_pipeline -v
"""

import contextlib
import io
import json
import re
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from logical_devices import on_logical_devices, plan_of  # noqa: E402  this folder must be on the path first
from tiny import make_tiny_corpus, tiny_run_config  # noqa: E402

from myxtts.config.stages import STAGES  # noqa: E402

STEPS = 6
LEFT_OUT = ("speaker", "decoder")
"""Stages that the runs skip, because they take longest and have their own tests."""


@on_logical_devices
def command(*flags, speaks=True):
    """Runs `train_main.py` with these flags on the tiny corpus; returns its output and files."""
    from myxtts.cli.train import main

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        corpus = make_tiny_corpus(Path(folder) / "corpus")
        every, steps = STEPS if speaks else 0, {"max_steps": STEPS}
        training = dict(sample_every_steps=every, num_samples=1, validate_every_steps=STEPS, leave_out=LEFT_OUT)
        config = tiny_run_config(dvae=steps, gpt=steps, training=training)
        settings = Path(folder) / "tiny.yaml"  # JSON is YAML
        settings.write_text(json.dumps(config.to_dict()))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = main(["--config", str(settings), "--train-data", str(corpus), "--checkpoint-dir", str(run), *flags])
        return {
            "code": code,
            "lines": out.getvalue().splitlines(),
            "files": sorted({path.name.split("_")[0] + path.suffix for path in (run / "samples").glob("*")}),
            "checkpoints": sorted(path.name for path in (run / "gpt").iterdir()),
        }


@on_logical_devices
def events_of_a_dual_run(delay_seconds):
    """Returns the events of a dual run with steps of 50 ms or more: when batches were prepared and trained on."""

    from myxtts.data.dataset import SpeechDataset
    from myxtts.training.trainer import XTTSTrainer

    plan, events = plan_of("dual"), []
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_tiny_corpus(Path(folder) / "corpus")
        data, steps = {"num_buckets": 1, "model_start_delay": delay_seconds}, {"max_steps": STEPS}
        training = {"reset_training": True, "validate_every_steps": 100}
        config = tiny_run_config(corpus, Path(folder) / "run", dvae=steps, data=data, training=training)
        dataset = SpeechDataset.open(config)
        trainer = XTTSTrainer(dataset.config, stage="dvae", plan=plan)
        make_pipeline, take_step = trainer.pipeline, trainer.batching.take_step

        def watch(phase, call):
            def watched(*arguments):
                result = call(*arguments)
                events.append((f"{phase} ended", time.monotonic()))
                return result

            return watched

        def take_step_watched(*arguments):
            if not any(name == "train began" for name, _ in events):
                time.sleep(0.1)  # a producer that did not wait would run on here
            events.append(("train began", time.monotonic()))
            losses = take_step(*arguments)
            time.sleep(0.05)
            events.append(("train ended", time.monotonic()))
            return losses

        trainer.batching.take_step = take_step_watched
        trainer.pipeline = lambda dataset, start, stop: make_pipeline(dataset, start, stop, watch)
        began = time.monotonic()
        with contextlib.redirect_stdout(None):
            trainer.train(dataset)
        depth = trainer.pipeline_depth
    return [(name, moment - began) for name, moment in events], depth


def position(lines, words):
    """Returns the index of the first line that contains `words`."""
    for index, line in enumerate(lines):
        if words in line:
            return index
    raise AssertionError(f"no line says: {words}\n" + "\n".join(lines))


class MultiGPUModeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        flags = "--virtual-devices 2 --enable-static-shapes --max-mel-frames 120 --buffer-size 7"
        cls.found = command(*flags.split(), "--model-start-delay", "0.3")
        cls.lines = cls.found["lines"]

    def test_reports_the_roles_of_devices_in_order(self):
        expected = [
            "Configuring Multi-GPU Mode...",
            "Data Processing GPU: 0",
            "Model Training GPU: 1",
            "Set visible devices: GPU 0 and GPU 1",
            "Multi-GPU configuration completed successfully",
            "These devices are virtual",
            "Intelligent GPU Pipeline: Multi-GPU Mode",
            "Prefetching to /CPU:0 with buffer_size=7",
            "Multi-GPU Mode: Model will be placed on /CPU:1",
            "(Original GPU 1 is now mapped to CPU:1)",
            "Creating model on device: /CPU:1",
            "Stage dvae: ",
            "Multi-GPU Mode: Waiting 0.3s for data pipeline to warm up...",
            "Model training starting now",
            f"dvae step {STEPS}/{STEPS}",
            "FINAL REPORT, stage dvae",
            f"gpt step {STEPS}/{STEPS}",
            "FINAL REPORT, stage gpt",
        ]
        places = [position(self.lines, words) for words in expected]
        self.assertEqual(places, sorted(places))
        pipeline = position(self.lines, "Intelligent GPU Pipeline: Multi-GPU Mode")
        self.assertEqual(self.lines[pipeline + 1], "Data Processing GPU: 0")

    def test_static_shapes_trace_the_step_exactly_once(self):
        traces = [line for line in self.lines if "Traces of the train step" in line]
        self.assertEqual(traces, ["  Traces of the train step: 1"] * (len(STAGES) - len(LEFT_OUT)))

    def test_report_has_the_monitored_figures(self):
        report = "\n".join(self.lines[position(self.lines, "FINAL REPORT, stage gpt") :])
        figures = r"Avg: \d+\.\dms, Std: \d+\.\dms\n  Throughput: \d+\.\d\d steps/sec\n  Variation: \d+\.\d%\n"
        self.assertRegex(report, figures + r"  Stall: \d+\.\d%\n  Buffer: \d+\.\d of 1 batches")
        self.assertNotIn("GPU: ", report)

    def test_speaks_and_saves_at_the_end(self):
        self.assertEqual(self.found["code"], 0)
        kinds = ("dvae.png", "dvae.wav", "final.wav", "recording.wav", "step.png", "step.wav")
        self.assertEqual(tuple(self.found["files"]), kinds)
        self.assertIn(f"step_{STEPS:08d}", self.found["checkpoints"])


class SingleGPUBufferedModeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lines = command("--buffer-size", "9", speaks=False)["lines"]

    def test_reports_its_mode_and_trains_with_the_same_pipeline(self):
        start = position(self.lines, "Intelligent GPU Pipeline: Single-GPU Buffered Mode")
        self.assertEqual(
            self.lines[start + 1 : start + 5],
            [
                "Buffer Size: 9",
                "Smart Prefetching: Enabled",
                "Prefetching to /CPU:0 with buffer_size=9",
                "Creating model on device: /CPU:0",
            ],
        )
        self.assertFalse([line for line in self.lines if "Multi-GPU" in line])
        # A step's line is folded at the terminal's width.
        self.assertTrue(re.search(r"^gpt step [^\n]*(\n +[^\n]*)*\| buffer \d/1 ", "\n".join(self.lines), re.MULTILINE))

    def test_traces_are_at_most_the_buckets(self):
        traces = [int(line.rsplit(":", 1)[1]) for line in self.lines if "Traces of the train step" in line]
        self.assertEqual(len(traces), len(STAGES) - len(LEFT_OUT))
        self.assertLessEqual(max(traces), 2)


class OrderTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.events, cls.depth = events_of_a_dual_run(0.4)

    def moments(self, name):
        return [moment for event, moment in self.events if event == name]

    def test_training_waits_for_the_head_start_and_the_filled_buffer(self):
        first = self.moments("train began")[0]
        self.assertGreaterEqual(first, 0.4)
        self.assertGreaterEqual(len([m for m in self.moments("transfer ended") if m < first]), self.depth - 2)

    def test_three_buffers_and_not_more(self):
        # Before the first step has ended: one trained on, one ready, one prepared.
        ended = self.moments("train ended")[0]
        self.assertEqual(len([m for m in self.moments("transfer ended") if m < ended]), self.depth)

    def test_next_batch_is_ready_before_a_step_ends(self):
        moved, ended = self.moments("transfer ended"), self.moments("train ended")
        self.assertEqual(len(moved), STEPS)
        for number in range(STEPS - 1):
            self.assertLess(moved[number + 1], ended[number])

    def test_each_batch_is_prepared_then_copied_then_trained_on(self):
        times = zip(
            *(self.moments(name) for name in ("preprocess ended", "transfer ended", "train began", "train ended"))
        )
        for moments in times:
            self.assertEqual(list(moments), sorted(moments))


if __name__ == "__main__":
    unittest.main()
