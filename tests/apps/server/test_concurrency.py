"""Runs that begin in one folder at the same moment."""

import threading
from concurrent.futures import ThreadPoolExecutor

from myxtts.storage.checkpoint import CheckpointError
from myxtts.storage.run_folder import own_run_folder


def test_one_of_those_that_begin_in_a_folder_at_the_same_moment_gets_it(tmp_path):
    at_once, all_tried = threading.Barrier(3), threading.Barrier(3)

    def begin(folder):
        at_once.wait(60)
        try:
            with own_run_folder(folder):
                all_tried.wait(60)
                return "began"
        except CheckpointError as error:
            all_tried.wait(60)
            return str(error)

    with ThreadPoolExecutor(3) as pool:
        for number in range(100):
            folder = tmp_path / str(number)
            outcomes = sorted(pool.map(begin, [folder] * 3))
            assert outcomes[2] == "began"
            assert all(outcome.startswith("Another run is writing to") for outcome in outcomes[:2]), outcomes
            assert not list(folder.iterdir())
