"""Compare the fastest mode of today's networks with a bare script of the same network, in pairs.

    python benchmarks/networks_of_today.py [--network vit_b_16,256 …] [--pairs 5]

The bare script compiles the network alone, records its whole step in a CUDA graph by hand, and has no gate: autocast to
BF16 with its cache off, fused AdamW, or inference in BF16. Our leg is the workload as a report runs it, after its
correctness check. Legs run in turns and in both orders, a pair gives one ratio, and the interval is over the pairs. The
exit code is 1 if a whole interval lies below 0.98.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable

import torch
from torch.utils._pytree import tree_map

from labkit.models import Network
from labkit.timing import CudaClock
from workbook.engines.state import reset_compiler
from workbook.statistics import log_interval
from workbook.trials.own_module import source_hash_of_file
from workbook.trials.today import open_today
from workbook.trials.trial import NO_DATA, Trial
from workbook.workloads import build_workload

CASES = (
    *("vit_b_16,256", "convnext_tiny,256", "swin_t,256", "resnet50,256", "gpt2_124m,32"),
    *("llama_1b,1", "llama_1b,64", "llama_8b,1"),
)
LEAST, LEG_S = 0.98, 1.0


def main() -> int:
    """Measure and print every case. Return 1 if one of ours is slower, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", nargs="*", default=CASES, help="NAME,BATCH; all by default")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    slower = 0
    for case in options.network:
        name, _, batch = case.partition(",")
        slower += compare(name, int(batch), options.pairs)
    return 1 if slower else 0


def compare(name: str, batch: int, pairs: int) -> bool:
    """Measure and print one case. Return whether ours is slower beyond doubt."""
    network = open_today(name)
    trial = Trial(
        workload="own_training" if network.loss else "own_prediction",
        model=name,
        workload_source=source_hash_of_file(network.path) if network.path else "",
        batch=batch,
        data=NO_DATA,
        precision="bf16",
        engine="compile+graph",
        memory_format="channels_last",
        **({"optimizer": "sgd_fused"} if network.loss else {}),
    )
    reset_compiler()
    ours = build_workload(trial, None)
    for _, prepare in ours.preparations():
        prepare()
    ours.check()
    bare = captured(training(network, batch) if network.loss else predicting(network, batch))
    clock, ratios, rates = CudaClock(), [], []
    seconds, _ = clock.time_block(bare, 3)
    steps = max(3, round(LEG_S / (seconds / 3)))
    for pair in range(pairs):
        legs = [("ours", ours.step), ("bare", bare)]
        took = {leg: clock.time_block(step, steps)[0] for leg, step in (legs if pair % 2 else legs[::-1])}
        ratios.append(took["bare"] / took["ours"])
        rates.append((network.tokens_per_sample or 1) * batch * steps / took["bare"])
    ratio, rate = log_interval(ratios), log_interval(rates)
    assert ratio.low is not None and ratio.high is not None
    verdict = "SLOWER" if ratio.high < LEAST else "at least as fast" if ratio.low >= LEAST else "undecided"
    unit = "tokens" if network.tokens_per_sample else "samples"
    print(
        f"{name} batch {batch}: bare {rate.point:,.0f} {unit}/s, ours over bare {ratio.point:.3f}x "
        f"[{ratio.low:.3f}, {ratio.high:.3f}], n = {ratio.n}: {verdict}",
        flush=True,
    )
    del ours, bare
    gc.collect()
    torch.cuda.empty_cache()
    return ratio.high < LEAST


def training(network: Network, batch: int) -> Callable[[], None]:
    """Return a step of a compiled training in BF16."""
    device = torch.device("cuda")
    model = network.build().to(device, memory_format=torch.channels_last)
    made = network.batch(batch, device)
    given = tuple(map(as_channels_last, made)) if isinstance(made, tuple) else made
    optimizer = network.optimizer(model.parameters())
    for flags in (optimizer.defaults, *optimizer.param_groups):
        flags.update({"fused": True} | ({"capturable": True} if "capturable" in optimizer.defaults else {}))
    compiled, loss_of = torch.compile(model), network.loss
    assert loss_of is not None

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = loss_of(compiled, given)
        loss.backward()
        optimizer.step()

    return step


def predicting(network: Network, batch: int) -> Callable[[], None]:
    """Return a step of a compiled prediction in BF16."""
    device, ask = torch.device("cuda"), network.predict
    model = network.build().to(device, torch.bfloat16)
    made = network.batch(batch, device)
    given = tree_map(lambda value: value.to(torch.bfloat16) if value.is_floating_point() else value, made)
    compiled = torch.compile(model, dynamic=False)
    assert ask is not None

    def step() -> None:
        with torch.inference_mode():
            ask(compiled, given)

    return step


def as_channels_last(value: torch.Tensor) -> torch.Tensor:
    """Return images in channels last, and other tensors as they are."""
    return value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """Return the replay of a step that a CUDA graph has recorded."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


if __name__ == "__main__":
    sys.exit(main())
