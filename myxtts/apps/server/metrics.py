"""What Prometheus reads of a server."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

FIRST_SOUND_SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 40, 80)
REAL_TIME_FACTORS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10)


class Metrics:
    """Figures of one server, in a registry of its own."""

    def __init__(self):
        self.registry = CollectorRegistry()
        own = dict(registry=self.registry)
        self.requests = Counter("myxtts_requests", "HTTP requests answered", ["path", "status"], **own)
        self.errors = Counter("myxtts_errors", "Texts that were not spoken to their end, by kind", ["kind"], **own)
        self.cancelled = Counter("myxtts_cancelled", "Texts whose listener went away", **own)
        self.texts = Counter("myxtts_texts", "Texts spoken to their end", **own)
        self.codes = Counter("myxtts_codes", "Audio codes drawn; their rate is the speed of the model", **own)
        self.sound = Counter("myxtts_sound_seconds", "Seconds of sound made", **own)
        self.waiting = Gauge("myxtts_waiting_texts", "Texts in the queue", **own)
        self.speaking = Gauge("myxtts_speaking_texts", "Texts that are being spoken", **own)
        self.rows = Gauge("myxtts_rows", "Rows of the model's batch in use", **own)
        first = "Seconds from a request's arrival to its first sound"
        self.first_sound = Histogram("myxtts_first_sound_seconds", first, buckets=FIRST_SOUND_SECONDS, **own)
        factor = "Seconds of speaking, without the queue, per second of sound"
        self.real_time_factor = Histogram("myxtts_real_time_factor", factor, buckets=REAL_TIME_FACTORS, **own)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)
