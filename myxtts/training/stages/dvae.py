"""Shim."""

from myxtts.training.preparation import measure_mel_stats


class DVAEStage:
    part = "dvae"
    speaks = False
    takes_init_from = False

    @staticmethod
    def measure(dataset):
        return measure_mel_stats(dataset.train_loader("dvae"), 16)
