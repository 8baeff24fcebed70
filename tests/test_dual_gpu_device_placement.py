"""Devices of variables, optimizer slots, batches and operations when data and model have separate devices, and numbers
of the GPUs. Runs without a GPU: logical CPU devices compute, and a stand-in machine has the physical GPUs.

    python -m unittest tests.test_dual_gpu_device_placement -v
"""

import contextlib
import io
import sys
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from logical_devices import on_logical_devices, plan_of  # noqa: E402  this folder must be on the path first
from stand_in_machine import stand_in_machine  # noqa: E402
from tiny import make_tiny_corpus, tiny_run_config  # noqa: E402

# Modules that the command imports for errors: extension modules must not be loaded again in a stand-in machine.
import myxtts.audio.files  # noqa: E402, F401
import myxtts.data.corpora  # noqa: E402, F401
import myxtts.data.sample_corpus  # noqa: E402, F401
import myxtts.storage.checkpoint  # noqa: E402, F401
from myxtts.cli.train import main  # noqa: E402
from myxtts.devices.configuration import DeviceError, early_gpu_configuration, require_placement  # noqa: E402
from myxtts.devices.machine import short_name  # noqa: E402

ACCUMULATION = 2
STEPS = 2
TRAINING = {"gradient_accumulation": ACCUMULATION, "reset_training": True, "validate_every_steps": 100}


def operations_by_device(metadata):
    """Kinds of operations that ran on each device, by short device name."""
    operations = {}
    for function in metadata.function_graphs:
        for graph in function.partition_graphs:
            for node in graph.node:
                operations.setdefault(short_name(node.device), set()).add(node.op.removeprefix("_Mkl"))
    return operations


@on_logical_devices
def watched(stage, precision="float32"):
    """Devices of variables, batches and operations in a short dual run."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    from myxtts.data.dataset import SpeechDataset
    from myxtts.models.xtts import XTTS
    from myxtts.training.trainer import XTTSTrainer

    plan = plan_of("dual")
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_tiny_corpus(Path(folder) / "corpus")
        data, steps = {"num_buckets": 1, "model_start_delay": 0.0}, {"max_steps": STEPS}
        training = {**TRAINING, "precision": precision}
        config = tiny_run_config(corpus, Path(folder) / "run", data=data, training=training, dvae=steps, gpt=steps)
        dataset = SpeechDataset.open(config)
        with tf.device(plan.data_device):
            dvae_model = XTTS(dataset.config.model, parts=("dvae",))
        trainer = XTTSTrainer(dataset.config, stage=stage, plan=plan, foundations={"dvae": dvae_model})
        batches = []

        def watch(phase, call):
            def watched(batch, *position):
                result = call(batch, *position)
                batches.append(
                    (phase, *([short_name(field.backing_device) for field in fields] for fields in (batch, result)))
                )
                return result

            return watched

        pipeline = trainer.pipeline
        trainer.pipeline = lambda dataset, start, stop: pipeline(dataset, start, stop, watch)
        context.enable_run_metadata()
        context.export_run_metadata()  # forgets what was run before
        with contextlib.redirect_stdout(None):
            trainer.train(dataset)
        operations = operations_by_device(context.export_run_metadata())
        context.disable_run_metadata()
        variables = {
            name: short_name((variable if callable(variable.value) else variable.value).device)
            for name, variable in trainer.placed_variables().items()
        }
        on_data_device = replace(plan, model_devices=(plan.data_device,))
        return {
            "variables": variables,
            "batches": batches,
            "operations": operations,
            "traces": trainer.train_step.traces,
            "audit of the DVAE": require_placement(dvae_model.part_weights("dvae").items(), on_data_device),
            "stray": error_of_a_stray_variable(trainer, dataset),
        }


def error_of_a_stray_variable(trainer, dataset):
    """Error message of a trainer with a variable on the data device."""
    import tensorflow as tf

    with tf.device(trainer.plan.data_device):
        trainer.train_step.state_variables["loss_scale"] = tf.Variable(1.0)
    try:
        trainer.train(dataset)
    except DeviceError as error:
        return str(error)


def configured(machine, *pair, **options):
    """Output of the early configuration on a stand-in machine, and the machine's TensorFlow."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        early_gpu_configuration(*pair, **options)
    return out.getvalue().splitlines(), machine()


class PlacementTest(unittest.TestCase):
    """A run of each stage with data on the first device and the model on the second."""

    @classmethod
    def setUpClass(cls):
        cls.found = {"dvae": watched("dvae"), "gpt": watched("gpt", "mixed_float16")}

    def test_every_variable_lives_on_the_model_device(self):
        for stage, found in self.found.items():
            for name, device in found["variables"].items():
                self.assertEqual(device, "/CPU:1", f"{name} of the {stage} stage")

    def test_weights_slots_loss_scale_and_accumulators_are_all_checked(self):
        names = self.found["gpt"]["variables"]
        weights = [name for name in names if name.startswith("gpt/")]
        accumulators = [name for name in names if name.startswith("accumulator/")]
        slots = [name for name in names if name.startswith("optimizer/")]
        self.assertEqual(len(accumulators), len(weights))
        self.assertGreaterEqual(len(slots), 2 * len(weights) + 2)  # two moments each, iterations, learning rate
        self.assertLessEqual({"loss_scale", "good_steps", "bad_steps"}, set(names))

    def test_frozen_dvae_lives_on_the_data_device(self):
        self.assertRegex(self.found["gpt"]["audit of the DVAE"], "[1-9][0-9] variables, all on /CPU:0$")

    def test_batch_is_on_the_data_device_until_it_is_copied_to_the_model_device(self):
        for found in self.found.values():
            self.assertEqual(len(found["batches"]), 2 * STEPS * ACCUMULATION)
            for phase, before, after in found["batches"]:
                self.assertEqual(set(before), {"/CPU:0"})
                self.assertEqual(set(after), {"/CPU:0" if phase == "preprocess" else "/CPU:1"})

    def test_data_work_runs_on_the_data_device_alone(self):
        for stage, found in self.found.items():
            self.assertIn("RFFT", found["operations"]["/CPU:0"])
            self.assertFalse({"RFFT", "MirrorPad"} & found["operations"]["/CPU:1"], stage)
        # The GPT stage's codes: only the data device looks for the nearest code.
        self.assertIn("ArgMin", self.found["gpt"]["operations"]["/CPU:0"])
        self.assertNotIn("ArgMin", self.found["gpt"]["operations"]["/CPU:1"])

    def test_training_runs_on_the_model_device_alone(self):
        updates = {"AssignSubVariableOp", "AssignAddVariableOp", "AssignVariableOp", "IsFinite", "L2Loss", "Sqrt"}
        for stage, found in self.found.items():
            self.assertLess(updates, found["operations"]["/CPU:1"])
            self.assertFalse(updates & found["operations"]["/CPU:0"], stage)
        self.assertIn("SparseSoftmaxCrossEntropyWithLogits", self.found["gpt"]["operations"]["/CPU:1"])

    def test_micro_batches_share_one_trace(self):
        for found in self.found.values():
            self.assertEqual(found["traces"], 1)

    def test_a_stray_variable_stops_the_run_and_is_named(self):
        for found in self.found.values():
            words = "^1 of [0-9]+ variables .*: loss_scale lives on /CPU:0 instead of /CPU:1[.].* /CPU:1[.]$"
            self.assertRegex(found["stray"], words)


class PhysicalNumbersTest(unittest.TestCase):
    """The chosen GPUs become /GPU:0 and /GPU:1, whatever their numbers."""

    def test_pairs_are_remapped(self):
        for data, model in ((0, 1), (2, 3), (3, 1), (1, 0)):
            with self.subTest(data=data, model=model), stand_in_machine(4) as machine:
                lines, tensorflow = configured(machine, data, model)
                self.assertEqual(tensorflow.boards(), [str(data), str(model)])
                self.assertEqual(sorted(tensorflow.state.growth), sorted([str(data), str(model)]))
                self.assertEqual(
                    lines[:7],
                    [
                        "Configuring Multi-GPU Mode...",
                        f"Data Processing GPU: {data}",
                        f"Model Training GPU: {model}",
                        f"Set visible devices: GPU {data} and GPU {model}",
                        "Configured memory growth for data GPU",
                        "Configured memory growth for model GPU",
                        "Multi-GPU configuration completed successfully",
                    ],
                )

    def test_memory_isolation_limits_instead_of_growth_and_can_share_one_gpu(self):
        with stand_in_machine(4) as machine:
            limits = dict(data_gpu_memory=3000, model_gpu_memory=9000)
            lines, tensorflow = configured(machine, 3, 3, memory_isolation=True, **limits)
            self.assertEqual(tensorflow.boards(), ["3", "3"])
            self.assertEqual(list(tensorflow.state.limits.values()), [[3000, 9000]])
            self.assertEqual(tensorflow.state.growth, [])
            self.assertTrue(any("Memory growth" in line for line in lines))
            self.assertIn("Configured memory limit for model GPU: 9000 MB", lines)


class RefusedDevicesTest(unittest.TestCase):
    """Unavailable devices end the command with exit code 2 and an error message, never with a run on one device."""

    def refused(self, *flags, num_gpus=2, **machine):
        out, errors = io.StringIO(), io.StringIO()
        with stand_in_machine(num_gpus, **machine), contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            self.assertEqual(main(["--train-data", "nowhere", *flags]), 2)
        self.assertNotIn("Intelligent GPU Pipeline", out.getvalue())
        return errors.getvalue()

    def test_too_few_gpus_names_how_many_there_are(self):
        for num_gpus in (0, 1):
            said = self.refused("--data-gpu", "0", "--model-gpu", "1", num_gpus=num_gpus)
            self.assertRegex(said, f"Insufficient GPUs for Multi-GPU Mode: .*this process sees {num_gpus}")
            self.assertIn("--virtual-devices 2", said)

    def test_index_out_of_range_names_it_and_the_range(self):
        said = self.refused("--data-gpu", "0", "--model-gpu", "7")
        self.assertIn("--model-gpu 7 is out of range", said)
        self.assertIn("0 to 1", said)


if __name__ == "__main__":
    unittest.main()
