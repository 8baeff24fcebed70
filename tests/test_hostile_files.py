"""Small files that try to hang or crash a parser are refused with a short error, in bounded time and memory.

Files that could hang are read in a separate process with limits of processor time and memory.
"""

import json
import os
import pickle
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from test_torch_checkpoint import tensor_opcodes, write_zip

from myxtts.config.checks import ConfigError, UserError
from myxtts.config.config import config_from_dict, read_yaml
from myxtts.interchange.coqui.torch_checkpoint import TorchCheckpointError, Unpickler, read_torch_checkpoint
from myxtts.storage.checkpoint import StoredTensors
from myxtts.storage.files import CheckpointError, read_json
from myxtts.text.cleaners import clean_text
from myxtts.text.tokenizer import Vocabulary, XTTSTokenizer

READERS = {
    "yaml": "from myxtts.config.config import read_yaml as read",
    "json": "from myxtts.text.tokenizer import XTTSTokenizer; read = XTTSTokenizer.from_file",
}


def refusal(path):
    """Returns the error message for a file that a process with limits of 20 s of CPU time and 2 GB reads."""
    program = f"""
import sys
from myxtts.config.checks import UserError
{READERS[path.suffix[1:]]}
try:
    read(sys.argv[1])
except UserError as error:
    print(error)
    sys.exit(2)
"""

    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
        resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30,) * 2)

    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, str(path)]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        command, preexec_fn=limit, capture_output=True, text=True, timeout=120, env=environment, cwd=root
    )
    assert done.returncode == 2, done.stderr
    assert len(done.stdout) < 1000 and "Traceback" not in done.stderr
    return done.stdout


DOUBLED = b"N" + b"2\x86" * 60
"""Sixty nested tuples, each with the previous one twice: 2^60 values in 121 bytes."""
HOSTILE_PICKLES = {
    "doubled_key": (b"\x80\x02}" + DOUBLED + b"Ns.", "repeats its values"),
    "doubled_set": (b"\x80\x04\x8f(" + DOUBLED + b"\x90.", "repeats its values"),
    "doubled_pairs": (b"\x80\x02ccollections\nOrderedDict\n](" + DOUBLED + b"N\x86e\x85R.", "repeats its values"),
    "deep_key": (b"\x80\x02}" + b"N" + b"\x85" * 200_000 + b"Ns.", "nested more than 100"),
    "deep_list": (b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".", "nested more than 100"),
    "doubled_storage_type": (
        b"\x80\x02(X\x07\x00\x00\x00storage" + DOUBLED + b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ.",
        "repeats its values",
    ),
    "doubled_state": (b"\x80\x02cbuiltins\nNoSuch\n)\x81" + DOUBLED + b"b.", "repeats its values"),
    "holds_itself": (b"\x80\x02]q\x00h\x00a.", "changes a value that another value"),
    "repeated_text": (b"\x80\x02](X\x00\x00\x10\x00" + b"a" * 2**20 + b"q\x00" + b"h\x00" * 1000 + b"e.", "repeats"),
    "colliding_keys": (
        b"\x80\x02}(" + b"".join(pickle.dumps(k * (2**61 - 1), 2)[2:-1] + b"N" for k in range(5001)) + b"u.",
        "keys that are not text",
    ),
}


@pytest.mark.parametrize("name", HOSTILE_PICKLES)
def test_pickle_that_costs_more_than_its_size_is_refused(name, tmp_path):
    pickled, message = HOSTILE_PICKLES[name]
    with pytest.raises(TorchCheckpointError, match=message) as error:
        Unpickler("model.pth").run(pickled)
    assert len(str(error.value)) < 200


def test_repeated_values_in_a_valid_pickle_are_read(tmp_path):
    shape, settings = (1, 2), {"rate": 22050}
    value = {"a": shape, "b": shape, "c": [settings, settings], 5: {7: shape}}
    assert read_torch_checkpoint(write_zip(tmp_path / "model.pth", pickle.dumps(value, 2))) == value


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02cnumpy\ndtype\n" + b"N\x85\x85R.",
        b"\x80\x02ctorch._utils\n_rebuild_parameter\n]\x85R.",
        b"\x80\x02ccollections\nOrderedDict\n](NN\x86e\x85R.",
        b"\x80\x02" + tensor_opcodes(2**80, 0, (1,), (1,)) + b".",
        b"\x80\x02(X\x07\x00\x00\x00storage" + b"]NNK\x01tQ.",
    ],
)
def test_argument_of_the_wrong_kind_is_an_error_message(pickled, tmp_path):
    with pytest.raises(TorchCheckpointError) as error:
        read_torch_checkpoint(write_zip(tmp_path / "model.pth", pickled, [bytes(8)]))
    assert len(str(error.value)) < 400


BOMB = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 1}]\n" for n in range(25))


@pytest.mark.parametrize(
    "content",
    [
        BOMB,
        BOMB.replace("[", "{x: ").replace("]", "}").replace(", *", ", y: *"),
        "model: &m\n  width: *m\n",
        "m0: &m0 {a: 1}\n" + "".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}\n" for n in range(1, 60)),
    ],
)
def test_yaml_whose_aliases_have_no_end_is_refused_in_its_limits(content, tmp_path):
    (tmp_path / "bomb.yaml").write_text(content)
    assert "cannot be read" in refusal(tmp_path / "bomb.yaml")


def test_aliases_that_people_write_are_read(tmp_path):
    (tmp_path / "run.yaml").write_text("training:\n  dvae: &stage {max_steps: 3}\n  gpt: {<<: *stage, batch_size: 2}\n")
    gpt = config_from_dict(read_yaml(tmp_path / "run.yaml")).training.gpt
    assert (gpt.max_steps, gpt.batch_size) == (3, 2)


def test_file_that_is_not_regular_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe.yaml", "zero.yaml", "pipe.json"):
        (tmp_path / name).symlink_to("/dev/zero" if name.startswith("zero") else tmp_path / "pipe")
        assert "not a regular file" in refusal(tmp_path / name)
    (tmp_path / "run.yaml").write_text("include: pipe\n")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_yaml(tmp_path / "run.yaml")
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_json(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["/dev/zero", "../secret.yaml", "link.yaml", "/etc/hostname", "a\\0b", "\\ud800"])
def test_include_stays_in_the_folder_of_the_configuration(name, tmp_path):
    (tmp_path / "secret.yaml").write_text("token hunter2\n  bad: [\n")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (tmp_path / "runs" / "run.yaml").write_text(f'include: "{name}"\n')
    with pytest.raises(ConfigError, match="include: in .* must be in .*runs or below") as error:
        read_yaml(tmp_path / "runs" / "run.yaml")
    assert "hunter2" not in str(error.value)


def test_includes_that_double_are_counted(tmp_path):
    for n in range(40):
        (tmp_path / f"{n}.yaml").write_text(f"include: [{n + 1}.yaml, {n + 1}.yaml]\n")
    (tmp_path / "40.yaml").write_text("")
    with pytest.raises(ConfigError, match="at most 100 files"):
        read_yaml(tmp_path / "0.yaml")


@pytest.mark.parametrize(
    "content",
    [
        "\0",
        "a: " + "x" * 70_000,
        "a: " + "9" * 5000,
        "a: 2020-99-99",
        'a: !!int ""',
        "a: !!bool maybe",
        "a: !!timestamp soon",
        "? [1, 2]\n: 3",
        "a: &a b\n*c : d",
        "[" * 5000,
    ],
)
def test_invalid_yaml_is_one_short_error_message(content, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match="cannot be read") as error:
        read_yaml(path)
    assert len(str(error.value)) < 500 and "\n" not in str(error.value)


@pytest.mark.parametrize("line", (Path(__file__).parent / "data/absurd_numbers.txt").read_text().splitlines())
def test_infinite_or_absurd_number_is_refused(line, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(line)
    with pytest.raises(ConfigError, match="must be") as error:
        config_from_dict(read_yaml(path))
    assert len(str(error.value)) < 400


def test_unknown_name_of_any_length_is_refused_quickly():
    for values in ({"x" * 10**6: {}}, {3: {}}, {"data": {10**5000: 1}}, {"data": [0] * 10**6}):
        with pytest.raises(ConfigError):
            config_from_dict(values)


@pytest.fixture(scope="module")
def vocabulary():
    return json.loads(XTTSTokenizer.train([("hello world hello", "en")]).to_json())


def with_added_tokens(document, contents):
    document = json.loads(json.dumps(document))
    for number, content in enumerate(contents):
        document["added_tokens"].append({"id": 1000 + number, "content": content})
    return document


@pytest.mark.parametrize(
    "contents, message",
    [
        ([f"<{n}>" for n in range(100_000)], "added_tokens.* at most 1000"),
        (["x" * 10**6], "1 to 100 characters"),
        (["\ud800"], "lone surrogate"),
    ],
)
def test_too_many_added_tokens_are_refused(contents, message, vocabulary):
    with pytest.raises(UserError, match=message) as error:
        Vocabulary.parse(json.dumps(with_added_tokens(vocabulary, contents)), "vocab.json")
    assert len(str(error.value)) < 300


def test_a_hundred_added_tokens_are_read(vocabulary):
    document = with_added_tokens(vocabulary, [f"<{n}>" for n in range(100)])
    found = Vocabulary.parse(json.dumps(document), "vocab.json").special_tokens
    assert len(found) == 100 + len(vocabulary["added_tokens"])


@pytest.mark.parametrize("text", ["[" * 10**5, '{"model": ' + "9" * 5000 + "}", "1e400"])
def test_vocabulary_with_odd_json_is_an_error_message(text):
    with pytest.raises(UserError, match="Vocabulary vocab.json"):
        Vocabulary.parse(text, "vocab.json")


@pytest.mark.parametrize(
    "dtype, num_bytes, axes", [("BF16", 2, 1), ("F8_E4M3", 1, 1), ("F8_E5M2", 1, 1), ("F32", 4, 65)]
)
def test_tensor_that_numpy_cannot_represent_is_an_error_message(dtype, num_bytes, axes, tmp_path):
    header = json.dumps({"a": {"dtype": dtype, "shape": axes * [1], "data_offsets": [0, num_bytes]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(num_bytes))
    with pytest.raises(CheckpointError, match="model.safetensors cannot be read"):
        dict(StoredTensors(path))


@pytest.mark.parametrize("language", ["ja", "zh", "ko", "en", "am"])
def test_lone_surrogate_is_cleaned_and_tokenized_like_an_unknown_character(language, vocabulary):
    assert clean_text("a\ud800b", language) == clean_text("a\N{REPLACEMENT CHARACTER}b", language)
    tokenizer = XTTSTokenizer(Vocabulary.parse(json.dumps(vocabulary), "vocab.json"))
    assert tokenizer.encode("hello \udcff", "en") == tokenizer.encode("hello \N{REPLACEMENT CHARACTER}", "en")
    assert tokenizer.check("hello \udcff", "en") == tokenizer.check("hello \N{REPLACEMENT CHARACTER}", "en")
