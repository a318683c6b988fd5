#!/usr/bin/env python3
"""Asks the MLRsearch library, RFC 9971's reference, what our search is compared with.

mlrsearch.py record    writes classes.bin and searches.csv next to this file
mlrsearch.py check     computes both again and fails if a recorded value differs

classes.bin    two bytes (little endian) for each random trial set: class << 14 | conditional loss in 1/8192ths, where class is
               0 for undecided, 1 for a lower bound, 2 for an upper bound
searches.csv   goals, dut, then for each seed the traffic time in milliseconds that the library's whole search took

tests/search_oracle.rs makes the same trial sets and the same simulated DUTs from the same seeds, in integers. All durations of the
trial sets are multiples of 105/512 s and all exceed ratios have powers of two below, so the library's float sums are exact and
no tie is decided by rounding.
"""
import importlib.metadata
import multiprocessing
import pathlib
import struct
import sys

from MLRsearch import AbstractMeasurer, Config, MeasurementResult, MultipleLossRatioSearch, SearchGoal
from MLRsearch.discrete_load import DiscreteLoad
from MLRsearch.discrete_width import DiscreteWidth
from MLRsearch.goal_result import GoalResult
from MLRsearch.load_rounding import LoadRounding
from MLRsearch.target_spec import TargetSpec
from MLRsearch.target_stat import TargetStat
from MLRsearch.trimmed_stat import TrimmedStat

VERSION = "1.2.1"
HERE = pathlib.Path(__file__).parent
MASK = (1 << 64) - 1

SETS = 60_000
UNIT_S = 105 / 512
LOAD_FPS = 1 << 20
PARTS = 8192
EXCEED = [(0, 1), (1, 16), (1, 8), (1, 4), (3, 8), (1, 2), (1, 2), (1, 2), (5, 8), (3, 4), (7, 8)]
LOSS_512THS = [0, 0, 1, 4, 32]

SEEDS = 200
GOALS = ["ndr", "pdr", "ndr+pdr", "rfc2544", "tst009", "ndr+pdr+rfc2544+tst009"]
DUTS = ["ideal", "noise-0.1%", "noise-0.5%", "noise-2%", "hiccups", "collapse", "collapse-noise-0.5%"]
MIN_FPS, MAX_FPS = 1_000, 14_880_952


def mix(state):
    """SplitMix64's output function."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Draw:
    """Numbers below a bound, one after the other, for one trial set."""

    def __init__(self, index):
        self.counter = index << 12

    def below(self, bound):
        self.counter += 1
        return mix(self.counter) % bound


def trial_set(index):
    """The goal as (loss in 512ths, exceed, final units, sum units) and the trials."""
    draw = Draw(index)
    exceed = EXCEED[draw.below(len(EXCEED))]
    loss_512ths = LOSS_512THS[draw.below(len(LOSS_512THS))]
    final_units = 1 + draw.below(4)
    sum_units = final_units * (1 + draw.below(24))
    bad_in_8 = draw.below(9)
    trials = []
    for _ in range(draw.below(33)):
        intended_units = 1 + draw.below(5)
        overhead_units = draw.below(3) if draw.below(4) == 0 else 0
        intended = 1024 << draw.below(4)
        edge = intended * loss_512ths // 512
        failed = edge + 1 + draw.below(64) if draw.below(8) < bad_in_8 else draw.below(edge + 1)
        unsent = draw.below(failed + 1) if draw.below(4) == 0 else 0
        is_duplicated = draw.below(16) == 0
        completed = intended - unsent
        received = completed + (failed - unsent if is_duplicated else unsent - failed)
        if draw.below(64) == 0:
            received = 0
        trials.append((intended_units, overhead_units, intended, completed, received))
    return (loss_512ths, exceed, final_units, sum_units), trials


ROUNDING = LoadRounding(min_load=1.0, max_load=float(LOAD_FPS), float_goals=[0.005])
WIDTH = DiscreteWidth(rounding=ROUNDING, float_width=0.005).rounded_down()


def classify(index):
    (loss_512ths, exceed, final_units, sum_units), trials = trial_set(index)
    target = TargetSpec(
        loss_ratio=loss_512ths / 512,
        exceed_ratio=exceed[0] / exceed[1],
        discrete_width=WIDTH,
        trial_duration=final_units * UNIT_S,
        duration_sum=sum_units * UNIT_S,
        expansion_coefficient=2,
        fail_fast=False,
        preceding=None,
    )
    stat = TargetStat(target)
    for intended_units, overhead_units, intended, completed, received in trials:
        stat.add(
            MeasurementResult(
                intended_duration=intended_units * UNIT_S,
                duration_with_overheads=(intended_units + overhead_units) * UNIT_S,
                intended_load=LOAD_FPS,
                intended_count=intended,
                offered_count=completed,
                forwarding_count=received,
            )
        )
    kind = {(True, True): 1, (False, False): 2}.get(stat.estimates(), 0)
    parts = stat.pessimistic_loss_ratio * PARTS
    assert parts == int(parts), parts
    if kind == 1:
        bound = TrimmedStat(rounding=ROUNDING, int_load=ROUNDING.max_int_load, target_to_stat={target: stat})
        throughput = GoalResult(relevant_lower_bound=bound, relevant_upper_bound=None).conditional_throughput
        assert float(throughput) == LOAD_FPS - parts * LOAD_FPS / PARTS, (float(throughput), parts)
    return kind << 14 | int(parts)


class SimulatedDut(AbstractMeasurer):
    """search/simulated.rs, line by line."""

    def __init__(self, dut, seed):
        random = mix(1_000_000 + seed)
        self.capacity_fps = (10_000 + random % 10_000) << ((random >> 32) % 9)
        self.ring_frames = 64 << ((random >> 40) % 5)
        self.seed = seed
        self.noise_ppm = {"noise-0.1%": 1_000, "noise-2%": 20_000}.get(dut, 5_000 if "noise" in dut else 0)
        self.hiccups_permille = 100 if dut == "hiccups" else 0
        self.collapses = dut.startswith("collapse")
        self.trials = 0
        self.traffic_ns = 0

    def measure(self, intended_duration, intended_load):
        random = mix(self.seed ^ mix(self.trials))
        duration_ns = round(intended_duration * 1e9)
        self.trials += 1
        self.traffic_ns += duration_ns
        sent = int(intended_load * intended_duration)
        overload_fps = max(0, int(intended_load) - self.capacity_fps) if self.collapses else 0
        capacity_fps = max(0, self.capacity_fps - overload_fps // 3)
        capacity = capacity_fps * duration_ns // 10**9 + self.ring_frames
        noise = sum(random >> (16 * part) & 0xFFFF for part in range(4))
        millionths = 1_000_000 + self.noise_ppm * noise // 37_837 - self.noise_ppm * 131_070 // 37_837
        passed = min(sent, capacity * millionths // 1_000_000)
        if (random >> 32) % 1000 < self.hiccups_permille:
            passed -= passed // 100
        return MeasurementResult(
            intended_duration=intended_duration,
            intended_load=intended_load,
            intended_count=sent,
            offered_count=sent,
            forwarding_count=passed,
        )


def goal(name):
    final, total = {"rfc2544": (60.0, 60.0), "tst009": (60.0, 120.0)}.get(name, (1.0, 21.0))
    return SearchGoal(
        loss_ratio=0.005 if name == "pdr" else 0.0,
        exceed_ratio=0.0 if name == "rfc2544" else 0.5,
        relative_width=0.005,
        initial_trial_duration=1.0,
        final_trial_duration=final,
        duration_sum=total,
        fail_fast=False,
    )


def traffic_ms(job):
    names, dut, seed = job
    goals = [goal(name) for name in names.split("+")]
    config = Config(goals=goals, min_load=MIN_FPS, max_load=MAX_FPS, search_duration_max=1200, warmup_duration=0)
    measurer = SimulatedDut(dut, seed)
    result = MultipleLossRatioSearch(config=config).search(measurer=measurer, debug=lambda text: None)
    for one in goals:
        lower, upper = float(result[one].relevant_lower_bound), float(result[one].relevant_upper_bound)
        assert 0 < (upper - lower) / upper <= 0.005, (job, lower, upper)
    return round(measurer.traffic_ns / 1e6)


def compute():
    jobs = [(names, dut, seed) for names in GOALS for dut in DUTS for seed in range(SEEDS)]
    with multiprocessing.Pool() as pool:
        classes = pool.map(classify, range(SETS), chunksize=1000)
        times = pool.map(traffic_ms, jobs, chunksize=50)
    rows = []
    for start in range(0, len(jobs), SEEDS):
        rows.append(",".join([*jobs[start][:2], *map(str, times[start : start + SEEDS])]))
    return {"classes.bin": struct.pack(f"<{SETS}H", *classes), "searches.csv": ("\n".join(rows) + "\n").encode()}


def main():
    version = importlib.metadata.version("MLRsearch")
    if version != VERSION:
        sys.exit(f"this is MLRsearch {version}: install MLRsearch=={VERSION}")
    if sys.argv[1:] not in (["record"], ["check"]):
        sys.exit(__doc__)
    for name, content in compute().items():
        path = HERE / name
        if sys.argv[1] == "record":
            path.write_bytes(content)
        elif path.read_bytes() != content:
            sys.exit(f"{path}: MLRsearch {VERSION} gives other values now: run 'mlrsearch.py record' and look at the difference")
        print(f"{name}: {len(content)} bytes {sys.argv[1]}ed")


if __name__ == "__main__":
    main()
