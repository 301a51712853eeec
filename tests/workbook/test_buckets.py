"""Gradients in buckets: which share a bucket, when each bucket is sent, and that no gradient is copied needlessly."""

from __future__ import annotations

import copy
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from workbook import ranks  # noqa: E402
from workbook.engines import training  # noqa: E402
from workbook.engines.exchange import buckets, side_stream  # noqa: E402
from workbook.engines.exchange.buckets import Bucket, Buckets, ByNccl, in_memory, parts_of  # noqa: E402
from workbook.errors import GateError  # noqa: E402
from workbook.ranks import Team  # noqa: E402
from workbook.trials.trial import Trial  # noqa: E402

TEAM = Team(0, 2, None, None)
SIDE = "the side stream"
CONV, NORM, HIDDEN, LAST = (0,), (1, 2), (3, 4), (5, 6)  # indices of the network's weights


class Halving:
    """A way whose other rank has gradients of 0, so the mean is half. It logs what is sent, and after what."""

    def __init__(self, _team: Team) -> None:
        self.sent: list[tuple[int, list[Any]]] = []
        self.waited: list[int] = []
        self.buckets = 0

    def send(self, bucket: Any, after: list[Any]) -> None:
        self.sent.append((bucket.flat.data_ptr(), list(after)))
        self.buckets += 1
        bucket.flat /= 2

    def send_weights(self, bucket: Any, update: Callable[[], None]) -> None:
        update()
        self.sent.append((bucket.weights.data_ptr(), []))

    def wait(self, number: int) -> None:
        assert number < self.buckets, "the bucket was not sent"
        self.waited.append(number)

    def forget(self) -> None:
        self.sent, self.waited, self.buckets = [], [], 0


@pytest.fixture(autouse=True)
def _nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(buckets, "ByGloo", Halving)
    yield
    side_stream.begin(None)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, 10))
    return model.to(memory_format=torch.channels_last)


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(8, 3, 8, 8, generator=generator).contiguous(memory_format=torch.channels_last)
    return images, torch.arange(8)


def loss_of(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(images), labels)


# ---- which gradients share a bucket ---------------------------------------------------------------------------------


def weights(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=dtype) for shape in shapes]


def test_buckets_begin_at_the_models_end_and_small_weights_come_last() -> None:
    shapes = weights((4, 3), (4,), (8, 4), (8,), (100, 8), (5, 100), (5,))
    assert parts_of(shapes, 2001) == [[5, 4], [2, 0], [6, 3, 1]]
    assert parts_of(shapes, 1) == [[5], [4], [2], [0], [6, 3, 1]]
    assert parts_of(weights((2, 2), (1000, 1000), (2, 2)), 100) == [[2, 1], [0]], "a weight may be larger than a bucket"


def test_a_bucket_has_one_dtype_and_its_size_is_counted_in_the_wires_precision() -> None:
    mixed = [*weights((10, 10), (10,), dtype=torch.bfloat16), *weights((10,), (10, 10))]
    assert parts_of(mixed, 2**20) == [[3], [0], [2], [1]]
    alike = weights((10, 10), (10, 10), (10, 10))
    assert parts_of(alike, 400) == [[2], [1], [0]]
    assert parts_of(alike, 400, torch.float16) == [[2, 1], [0]]


# ---- when each bucket is sent ---------------------------------------------------------------------------------------


def test_a_bucket_is_sent_while_the_backward_pass_goes_on() -> None:
    model = network()
    exchange = Buckets(model, TEAM, bucket_bytes=1)
    assert exchange.parts == [[*LAST[:1]], [*HIDDEN[:1]], [*CONV], [LAST[1], HIDDEN[1], *NORM[::-1]]]
    sent: list[int] = []
    model[1].register_full_backward_hook(lambda *_: sent.append(len(exchange._way.sent)))
    exchange.begin()
    loss_of(model, *batch()).backward()
    assert sent == [2], "both buckets of the head are sent before the backward pass reaches batch norm"
    assert [at for at, _ in exchange._way.sent] == [bucket.flat.data_ptr() for bucket in exchange._buckets]


def test_ranks_send_buckets_in_one_order_whichever_is_full_first() -> None:
    """A bucket that is full before its turn waits, because another rank may fill its buckets in another order."""
    model = network()
    exchange = Buckets(model, TEAM, bucket_bytes=1)
    own = list(model.parameters())
    for weight in own:
        weight.grad = torch.ones_like(weight)
    exchange.begin()
    counts = []
    for index in (*CONV, *HIDDEN, *NORM, *LAST):
        exchange._accumulated(own[index])
        counts.append(len(exchange._way.sent))
    assert counts == [0, 0, 0, 0, 0, 3, 4]
    assert list(exchange.arriving()) == [0, 1, 2, 3]
    assert all(bool((weight.grad == 0.5).all()) for weight in own)


def test_the_update_may_begin_with_the_buckets_that_have_arrived() -> None:
    model = network()
    exchange = Buckets(model, TEAM, bucket_bytes=1)
    exchange.begin()
    loss_of(model, *batch()).backward()
    arriving = exchange.arriving()
    assert (next(arriving), exchange._way.waited) == (0, [0])
    assert (next(arriving), exchange._way.waited) == (1, [0, 1])


@pytest.mark.parametrize("wire", [None, torch.float16])
def test_gradients_have_their_weights_layout_and_are_the_mean_in_every_step(wire: torch.dtype | None) -> None:
    model, plain = network(), network()
    exchange = Buckets(model, TEAM, wire=wire, bucket_bytes=3000)
    for number in range(3):
        model.zero_grad(set_to_none=True)
        plain.zero_grad()
        exchange.begin()
        loss_of(model, *batch(number)).backward()
        exchange.wait()
        loss_of(plain, *batch(number)).backward()
        for weight, reference in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(weight.grad, reference.grad / 2, rtol=1e-3 if wire else 1e-6, atol=1e-6)
            assert (weight.grad.stride(), weight.grad.dtype) == (weight.stride(), weight.dtype)


def test_a_weight_without_a_gradient_is_named() -> None:
    model = network()
    model.add_module("spare", nn.Linear(2, 2))
    exchange = Buckets(model, TEAM)
    exchange.begin()
    loss_of(model[:7], *batch()).backward()
    with pytest.raises(GateError, match=r"2 weights got no gradient that could be averaged, spare\.bias first"):
        exchange.wait()
    with torch.no_grad():
        model.spare.weight.grad = torch.ones(2, 2)
    exchange.begin()
    with pytest.raises(GateError, match="9 weights got no gradient"):
        exchange.wait()


def test_a_gradient_that_arrives_twice_is_an_error() -> None:
    model = network()
    exchange = Buckets(model, TEAM)
    exchange.begin()
    loss = loss_of(model, *batch())
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="came twice"):
        loss.backward()


def test_the_model_and_its_buckets_free_their_memory_at_once() -> None:
    gc.disable()
    try:
        model = network()
        exchange = Buckets(model, TEAM)
        exchange.begin()
        loss_of(model, *batch()).backward()
        exchange.wait()
        left = [weakref.ref(model[6].weight), weakref.ref(exchange._buckets[0].flat)]
        del model, exchange
        assert [reference() for reference in left] == [None, None]
    finally:
        gc.enable()


# ---- an update that ranks share -------------------------------------------------------------------------------------


def bucket_of(team: Team | None) -> Any:
    return Bucket([nn.Parameter(torch.ones(300, 2))], None, team)


def test_ranks_share_each_weight_without_a_gap_and_weights_keep_their_values() -> None:
    own: dict[int, list[tuple[int, int]]] = {}
    for rank in range(3):
        model, before = network(), network()
        exchange = Buckets(model, Team(rank, 3, None, None), bucket_bytes=1, update=print, shared_bytes=1500)
        assert exchange.shared_sizes_bytes == [3072, 147456, 3072]
        assert exchange.sizes_bytes == [3072, 147456, 3072, 2048], "in thirds, except for small weights"
        for index, share in exchange.own.items():
            own.setdefault(index, []).append(share)
        for weight, original in zip(model.parameters(), before.parameters(), strict=True):
            assert torch.equal(weight, original) and weight.stride() == original.stride()
        for bucket in exchange._buckets:
            for weight, view in bucket.views.items():
                offset = None if bucket.weights is None else weight.data_ptr() - bucket.weights.data_ptr()
                assert offset in (None, view.data_ptr() - bucket.flat.data_ptr())
    assert set(own) == {*LAST[:1], *HIDDEN[:1], *CONV}
    for index, shares in own.items():
        assert shares[0][0] == 0 and shares[-1][1] == list(network().parameters())[index].numel()
        assert all(first == before for (first, _), (_, before) in zip(shares[1:], shares[:-1], strict=True))
    assert own[HIDDEN[0]] == [(0, 12288), (12288, 24576), (24576, 36864)]


def test_a_share_is_updated_only_after_the_backward_pass_has_read_its_weights() -> None:
    model, log = network(), []
    exchange = Buckets(model, TEAM, bucket_bytes=1, update=lambda part: log.append(part), shared_bytes=1500)
    own = list(model.parameters())
    exchange.begin()
    for index in (LAST[0], HIDDEN[0]):
        own[index].grad = exchange.place_of(own[index])
        exchange.made(own[index], SIDE)
    sent = exchange._way.sent
    assert (len(sent), log) == (1, []), (
        "the backward pass may still read the weights, and the next bucket waits for its turn"
    )
    exchange._accumulated(own[LAST[0]])
    assert (len(sent), log) == (3, [0])
    exchange._accumulated(own[HIDDEN[0]])
    assert (len(sent), log) == (4, [0, 1])
    for index in (*CONV, LAST[1], HIDDEN[1], *NORM):
        own[index].grad = torch.ones_like(own[index])
        exchange._accumulated(own[index])
    assert log == [0, 1, 2]
    assert list(exchange.arriving()) == [3], "the other buckets have new weights"
    assert exchange._way.waited == [0, 1, 2, 3]


def test_waiting_for_buckets_that_are_not_accumulated_is_an_error() -> None:
    model = network()
    exchange = Buckets(model, TEAM, bucket_bytes=1, update=lambda _: None, shared_bytes=1500)
    exchange.begin()
    for index in (*LAST, *HIDDEN, *CONV, *NORM):
        exchange.made(list(model.parameters())[index], SIDE)
    with pytest.raises(RuntimeError, match="has not accumulated all gradients of bucket 0"):
        exchange.wait()


def test_two_ranks_that_share_the_update_train_like_one_process(tmp_path: Path) -> None:
    """Two processes over Gloo take three steps of SGD with momentum, each on half of the images (norms are fixed)."""
    found = tmp_path / "found"
    torch.multiprocessing.spawn(_train_in_shares, (str(tmp_path / "meeting"), str(found)), nprocs=2)
    plain = network().eval()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for number in range(3):
        optimizer.zero_grad()
        loss_of(plain, *batch(number)).backward()
        optimizer.step()
    momenta = [optimizer.state[weight]["momentum_buffer"] for weight in plain.parameters()]
    for rank in range(2):
        weights, whole = torch.load(f"{found}{rank}")
        for ours, theirs in zip([*weights, *whole], [*plain.parameters(), *momenta], strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
            assert ours.stride() == theirs.stride()


def _train_in_shares(rank: int, meeting: str, found: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    model = network().eval()
    weights = list(model.parameters())
    momenta = [torch.zeros_like(weight) for weight in weights]

    def update(part: int) -> None:
        with torch.no_grad():
            for index in exchange.parts[part]:
                weight = weights[index]
                share = slice(*exchange.own.get(index, (0, weight.numel())))
                new, old, gradient = (in_memory(tensor)[share] for tensor in (weight, momenta[index], weight.grad))
                old.mul_(0.9).add_(gradient)
                new.sub_(0.1 * old)

    exchange = Buckets(model, Team(rank, 2, None, None), bucket_bytes=1, update=update, shared_bytes=1500)
    for number in range(3):
        images, labels = batch(number)
        model.zero_grad(set_to_none=True)
        exchange.begin()
        loss_of(model, images[rank::2], labels[rank::2]).backward()
        for part in exchange.arriving():
            update(part)
    torch.save(([weight.detach() for weight in weights], exchange.whole(momenta)), f"{found}{rank}")
    torch.distributed.barrier()
    os._exit(0)  # the project's ranks end like this: on Python's normal exit, threads of Gloo have aborted


# ---- gradients from the side stream ---------------------------------------------------------------------------------


def as_it_is(step: Callable[..., Any]) -> Callable[..., Any]:
    return step


def by_inductor(step: Callable[..., Any]) -> Callable[..., Any]:
    options = {**side_stream.INDUCTOR_OPTIONS, "reorder_for_peak_memory": False}
    return torch.compile(step, fullgraph=True, dynamic=False, options=options)


@pytest.mark.parametrize("engine", [as_it_is, pytest.param(by_inductor, marks=pytest.mark.thorough)])
def test_side_stream_gradients_are_sent_when_queued_and_without_a_copy(
    engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_stream, "_fork", lambda *_: SIDE)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    torch.compiler.reset()
    model, plain = network(), network()
    side_stream.use_side_stream(model)
    exchange = Buckets(model, TEAM, bucket_bytes=1)
    heard: list[int] = []
    original, own = exchange.made, list(model.parameters())

    def hear(weight: torch.Tensor, stream: Any) -> None:
        original(weight, stream)
        heard.append(next(at for at, candidate in enumerate(own) if candidate.data_ptr() == weight.data_ptr()))

    monkeypatch.setattr(exchange, "made", hear)
    step = engine(lambda images, labels: loss_of(model, images, labels))
    for number in range(2):
        model.zero_grad(set_to_none=True)
        plain.zero_grad()
        heard.clear()
        exchange.begin()
        side_stream.begin(exchange)
        step(*batch(number)).backward()
        assert heard == [LAST[0], HIDDEN[0], CONV[0]], "in the order of the buckets: no bucket waits for a later one"
        assert [after for _, after in exchange._way.sent] == [[SIDE]] * 4
        exchange.wait()
        side_stream.check_not_copied([weight.grad for weight in own if weight.grad is not None])
        loss_of(plain, *batch(number)).backward()
        for weight, reference in zip(own, plain.parameters(), strict=True):
            assert torch.allclose(weight.grad, reference.grad / 2, atol=1e-6)
            assert weight.grad.data_ptr() == exchange._home[weight].views[weight].data_ptr()
            assert weight.grad.stride() == weight.stride()


def test_a_gradient_that_autograd_copies_while_it_is_sent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    exchange = Buckets(model, TEAM)
    exchange.begin()
    last = model[6].weight
    exchange.made(last, SIDE)
    last.grad = copy.deepcopy(exchange.place_of(last))
    with pytest.raises(RuntimeError, match=r"autograd copied the gradient of 6\.weight"):
        exchange._accumulated(last)


def test_a_gradient_that_is_rounded_for_the_wire_has_no_place_in_a_bucket() -> None:
    model = network()
    weight = model[6].weight
    place = Buckets(model, TEAM).place_of(weight)
    assert place is not None and (place.shape, place.stride()) == (weight.shape, weight.stride())
    assert Buckets(model, TEAM, wire=torch.float16).place_of(weight) is None
    assert Buckets(model, TEAM).place_of(torch.empty(3)) is None, "the weight belongs to another model"


# ---- on a GPU: the order in which streams wait ----------------------------------------------------------------------


class Stream:
    """A stand-in for a CUDA stream that logs its calls."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> str:
        self.log.append(f"an event of {self.name}")
        return f"event {len(self.log)}"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")


def test_on_a_gpu_a_bucket_waits_for_the_streams_that_fill_it_and_the_update_for_the_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    main, side = Stream("main", log), Stream("side", log)
    entered: list[str] = ["main"]

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        entered.append(stream.name)
        yield
        entered.pop()

    def all_reduce(_flat: torch.Tensor, *, op: Any, group: Any) -> None:
        assert op == torch.distributed.ReduceOp.AVG
        log.append(f"the mean on {entered[-1]}")

    def reduce_scatter(own: torch.Tensor, flat: torch.Tensor, *, op: Any, group: Any) -> None:
        assert op == torch.distributed.ReduceOp.AVG
        assert (own.data_ptr(), own.numel()) == (flat.data_ptr() + flat.nbytes // 2, flat.numel() // 2)
        log.append(f"the share's mean on {entered[-1]}")

    def all_gather(flat: torch.Tensor, own: torch.Tensor, *, group: Any) -> None:
        assert (own.data_ptr(), own.numel()) == (flat.data_ptr() + flat.nbytes // 2, flat.numel() // 2)
        log.append(f"new weights on {entered[-1]}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda **_: Stream("exchange", log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(torch.distributed, "reduce_scatter_tensor", reduce_scatter)
    monkeypatch.setattr(torch.distributed, "all_gather_into_tensor", all_gather)
    way = ByNccl(TEAM)
    way.send(bucket_of(None), [side])
    way.send(bucket_of(None), [])
    sent = ["exchange waits for main", "exchange waits for side", "the mean on exchange", "an event of exchange"]
    assert log == [*sent, sent[0], *sent[2:]]
    way.wait(0)
    way.wait(1)
    assert log[-2:] == ["main waits for event 4", "main waits for event 7"]

    log.clear()
    way.forget()
    shared = bucket_of(Team(1, 2, None, None))
    way.send(shared, [side])
    way.send_weights(shared, lambda: log.append(f"the update on {entered[-1]}"))
    sent[2] = "the share's mean on exchange"
    updated = ["the update on exchange", "new weights on exchange", "an event of exchange"]
    assert log == [*sent, "exchange waits for main", *updated]
    way.wait(0)
    assert log[-1] == "main waits for event 8", "the event of the weights, not of the gradients"


@pytest.mark.parametrize(
    ("together", "engine", "in_buckets"), [(TEAM, "compile", True), (TEAM, "eager", False), (None, "compile", False)]
)
def test_compiled_steps_of_ranks_exchange_in_buckets_and_inductor_keeps_the_order(
    together: Team | None, engine: str, in_buckets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(torch, "compile", lambda step, **options: given.append(options["options"]) or step)
    monkeypatch.setattr(training, "overlapped", lambda model, _team, _precision: model)
    trial = Trial(device="cpu", engine=engine, devices=2 if together else 1, optimizer="sgd_fused")
    with ranks.working_as(together):
        made = training.Training(trial, network(), captured=False, restarts=False)
    assert (made.buckets is not None) == in_buckets
    made.compile()
    assert (given[0].get("reorder_for_peak_memory") is False) == in_buckets
