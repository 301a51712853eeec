"""An engine that cannot be made: one preparation is done, the next one raises, the last must not be tried."""

from tests.faulty.prepared import Prepared


def build(trial, data):
    return PreparesBadly(trial)


class PreparesBadly(Prepared):
    def prepare(self, name):
        if name == "compile":
            raise RuntimeError("the compiler gave up")
        if name == "capture":
            raise AssertionError("went on after a preparation that failed")

    def check(self):
        raise AssertionError("a trial that failed to prepare was checked")
