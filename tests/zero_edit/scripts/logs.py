"""A logger as people write it: its means are in an object that a class attribute has. For tests."""

from collections import defaultdict


class Logger:
    CURRENT, calls = None, 0

    def __init__(self):
        self.means, self.counts, self.rows = defaultdict(float), defaultdict(int), []


def configure():
    Logger.CURRENT = Logger()


def add_mean(name, value):
    logger = Logger.CURRENT
    count = logger.counts[name]
    logger.means[name] = logger.means[name] * count / (count + 1) + value / (count + 1)
    logger.counts[name] = count + 1
    Logger.calls += 1


def write():
    logger = Logger.CURRENT
    logger.rows.append([logger.counts["loss"], round(logger.means["loss"], 6)])
    logger.means.clear()
    logger.counts.clear()
