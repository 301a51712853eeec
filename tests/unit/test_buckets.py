"""Gradients in buckets: which go together, when each is sent, and that nobody copies what lies there already."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from labkit import ranks  # noqa: E402
from labkit.engines import buckets, side_stream, training  # noqa: E402
from labkit.engines.buckets import Buckets, parts_of  # noqa: E402
from labkit.errors import GateError  # noqa: E402
from labkit.ranks import Team  # noqa: E402
from labkit.trial import Trial  # noqa: E402

TEAM = Team(0, 2, None, None)
SIDE = "the side stream"
CONV, NORM, HIDDEN, LAST = (0,), (1, 2), (3, 4), (5, 6)  # the places of the network's weights


class Halving:
    """The other rank's gradients are none: the mean is half of this rank's. Notes what is sent, and after what."""

    def __init__(self, _team: Team) -> None:
        self.sent: list[tuple[int, list[Any]]] = []
        self.waited: list[int] = []

    def send(self, flat: torch.Tensor, after: list[Any]) -> None:
        self.sent.append((flat.data_ptr(), list(after)))
        flat /= 2

    def wait(self, number: int) -> None:
        assert number < len(self.sent)
        self.waited.append(number)

    def forget(self) -> None:
        self.sent, self.waited = [], []


@pytest.fixture(autouse=True)
def _nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(buckets, "_ByGloo", Halving)
    yield
    side_stream._receiver = None


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


# ---- which go together ----------------------------------------------------------------------------------------------


def weights(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=dtype) for shape in shapes]


def test_buckets_follow_the_model_from_its_end_and_what_is_small_comes_last() -> None:
    shapes = weights((4, 3), (4,), (8, 4), (8,), (100, 8), (5, 100), (5,))
    assert parts_of(shapes, 2001) == [[5, 4], [2, 0], [6, 3, 1]]
    assert parts_of(shapes, 1) == [[5], [4], [2], [0], [6, 3, 1]]
    assert parts_of(shapes, 2**30) == [[5, 4, 2, 0], [6, 3, 1]]


def test_a_gradient_larger_than_a_bucket_has_one_of_its_own() -> None:
    assert parts_of(weights((2, 2), (1000, 1000), (2, 2)), 100) == [[2, 1], [0]]
    assert parts_of(weights((2, 2), (1000, 1000), (50, 2)), 100) == [[2], [1], [0]]


def test_a_bucket_has_one_type_and_its_size_is_that_of_what_is_sent() -> None:
    mixed = [*weights((10, 10), (10,), dtype=torch.bfloat16), *weights((10,), (10, 10))]
    assert parts_of(mixed, 2**20) == [[3], [0], [2], [1]]
    alike = weights((10, 10), (10, 10), (10, 10))
    assert parts_of(alike, 400) == [[2], [1], [0]]
    assert parts_of(alike, 400, torch.float16) == [[2, 1], [0]]


# ---- when each is sent ----------------------------------------------------------------------------------------------


def test_a_bucket_is_sent_while_the_backward_pass_goes_on() -> None:
    model = network()
    exchange = Buckets(model, TEAM, bucket_bytes=1)
    assert exchange.parts == [[*LAST[:1]], [*HIDDEN[:1]], [*CONV], [LAST[1], HIDDEN[1], *NORM[::-1]]]
    sent: list[int] = []
    model[1].register_full_backward_hook(lambda *_: sent.append(len(exchange._way.sent)))  # type: ignore[union-attr]
    exchange.begin()
    loss_of(model, *batch()).backward()
    assert sent == [2], "the head's two are gone when batch norm is passed"
    assert [at for at, _ in exchange._way.sent] == [bucket.flat.data_ptr() for bucket in exchange._buckets]  # type: ignore[union-attr]


def test_ranks_send_in_one_order_whichever_is_full_first() -> None:
    """A bucket that is full before its turn waits: another rank may have filled them in another order."""
    model = network()
    exchange = Buckets(model, TEAM, bucket_bytes=1)
    own = list(model.parameters())
    for weight in own:
        weight.grad = torch.ones_like(weight)
    exchange.begin()
    counts = []
    for index in (*CONV, *HIDDEN, *NORM, *LAST):
        exchange._accumulated(own[index])
        counts.append(len(exchange._way.sent))  # type: ignore[union-attr]
    assert counts == [0, 0, 0, 0, 0, 3, 4]
    assert list(exchange.arriving()) == [0, 1, 2, 3]
    assert all(bool((weight.grad == 0.5).all()) for weight in own)


def test_the_update_may_begin_with_what_has_come() -> None:
    model = network()
    exchange = Buckets(model, TEAM, bucket_bytes=1)
    exchange.begin()
    loss_of(model, *batch()).backward()
    arriving = exchange.arriving()
    assert (next(arriving), exchange._way.waited) == (0, [0])  # type: ignore[union-attr]
    assert (next(arriving), exchange._way.waited) == (1, [0, 1])  # type: ignore[union-attr]


@pytest.mark.parametrize("wire", [None, torch.float16])
def test_gradients_lie_like_their_weights_and_are_the_mean_in_every_step(wire: torch.dtype | None) -> None:
    model, plain = network(), network()
    exchange = Buckets(model, TEAM, wire=wire, bucket_bytes=3000)
    for number in range(3):
        model.zero_grad(set_to_none=True)
        plain.zero_grad()
        exchange.begin()
        loss_of(model, *batch(number)).backward()
        exchange.wait()
        loss_of(plain, *batch(number)).backward()
        for weight, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert weight.grad is not None and other.grad is not None
            assert torch.allclose(weight.grad, other.grad / 2, rtol=1e-3 if wire else 1e-6, atol=1e-6)
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


def test_a_gradient_that_comes_twice_is_an_error() -> None:
    model = network()
    exchange = Buckets(model, TEAM)
    exchange.begin()
    loss = loss_of(model, *batch())
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="came twice"):
        loss.backward()


def test_the_model_and_its_buckets_give_their_memory_back_at_once() -> None:
    gc.disable()
    try:
        model = network()
        exchange = Buckets(model, TEAM)
        exchange.begin()
        loss_of(model, *batch()).backward()
        exchange.wait()
        left = [weakref.ref(model[6].weight), weakref.ref(exchange._buckets[0].flat)]
        del model, exchange
        assert [one() for one in left] == [None, None]
    finally:
        gc.enable()


# ---- gradients that are made on the side stream ---------------------------------------------------------------------


def as_it_is(step: Callable[..., Any]) -> Callable[..., Any]:
    return step


def traced(step: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=False)


def by_inductor(step: Callable[..., Any]) -> Callable[..., Any]:
    options = {**side_stream.INDUCTOR_OPTIONS, "reorder_for_peak_memory": False}
    return torch.compile(step, fullgraph=True, dynamic=False, options=options)


@pytest.mark.parametrize("engine", [as_it_is, traced, pytest.param(by_inductor, marks=pytest.mark.slow)])
def test_what_the_side_stream_makes_is_sent_as_soon_as_it_is_queued_and_copied_by_nobody(
    engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_stream, "_fork", lambda *_: SIDE)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    torch.compiler.reset()
    model, plain = network(), network()
    side_stream.use_side_stream(model)
    exchange = Buckets(model, TEAM, bucket_bytes=1)
    heard: list[int] = []
    told, own = exchange.made, list(model.parameters())
    monkeypatch.setattr(
        exchange,
        "made",
        lambda weight, stream: (
            told(weight, stream),
            heard.append(next(at for at, one in enumerate(own) if one.data_ptr() == weight.data_ptr())),
        ),
    )

    def whole(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss_of(model, images, labels)

    step = engine(whole)
    for number in range(2):
        model.zero_grad(set_to_none=True)
        plain.zero_grad()
        heard.clear()
        exchange.begin()
        side_stream.begin(exchange)
        step(*batch(number)).backward()
        assert heard == [LAST[0], HIDDEN[0], CONV[0]], "in the order of the buckets: none waits for a later one"
        assert [after for _, after in exchange._way.sent] == [[SIDE]] * 4  # type: ignore[union-attr]
        exchange.wait()
        side_stream.check_not_copied([weight.grad for weight in own if weight.grad is not None])
        loss_of(plain, *batch(number)).backward()
        for weight, other in zip(own, plain.parameters(), strict=True):
            assert weight.grad is not None and other.grad is not None
            assert torch.allclose(weight.grad, other.grad / 2, atol=1e-6)
            assert weight.grad.data_ptr() == exchange._home[weight].views[weight].data_ptr()
            assert weight.grad.stride() == weight.stride()


def test_a_gradient_that_autograd_copied_while_it_was_sent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    exchange = Buckets(model, TEAM)
    exchange.begin()
    last = model[6].weight
    exchange.made(last, SIDE)
    last.grad = copy.deepcopy(exchange.place_of(last))
    with pytest.raises(RuntimeError, match=r"autograd copied the gradient of 6\.weight"):
        exchange._accumulated(last)


def test_what_is_rounded_before_it_is_sent_has_no_place_to_be_made_in() -> None:
    model = network()
    weight = model[6].weight
    place = Buckets(model, TEAM).place_of(weight)
    assert place is not None and (place.shape, place.stride()) == (weight.shape, weight.stride())
    assert Buckets(model, TEAM, wire=torch.float16).place_of(weight) is None
    assert Buckets(model, TEAM).place_of(torch.empty(3)) is None, "a weight of another model"


# ---- on a GPU, whose streams are told in which order to wait --------------------------------------------------------


class Stream:
    """Notes what it is told."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> str:
        self.log.append(f"an event of {self.name}")
        return f"event {len(self.log)}"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")


def test_on_a_gpu_a_bucket_waits_for_those_who_filled_it_and_the_update_for_the_bucket(
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

    monkeypatch.setattr(torch.cuda, "Stream", lambda **_: Stream("exchange", log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    way = buckets._ByNccl(TEAM)
    way.send(torch.zeros(1), [side])
    way.send(torch.zeros(1), [])
    sent = ["exchange waits for main", "exchange waits for side", "the mean on exchange", "an event of exchange"]
    assert log == [*sent, sent[0], *sent[2:]]
    way.wait(0)
    way.wait(1)
    assert log[-2:] == ["main waits for event 4", "main waits for event 7"]


@pytest.mark.parametrize(
    ("together", "engine", "mine"), [(TEAM, "compile", True), (TEAM, "eager", False), (None, "compile", False)]
)
def test_which_steps_exchange_in_buckets_and_that_inductor_then_keeps_the_order(
    together: Team | None, engine: str, mine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(torch, "compile", lambda step, **options: given.append(options["options"]) or step)
    monkeypatch.setattr(training, "overlapped", lambda model, _team, _precision: model)
    trial = Trial(device="cpu", engine=engine, devices=2 if together else 1, optimizer="sgd_fused")
    with ranks.working_as(together):
        made = training.Training(trial, network(), captured=False, restarts=False)
    assert (made.buckets is not None) == mine
    made.compile()
    assert (given[0].get("reorder_for_peak_memory") is False) == mine
