"""Weights that stay in their file: to everybody a state like another, and their mean has the same bits in little room."""

from __future__ import annotations

import gc
import os
from collections import OrderedDict
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unseen.codec import CodecError, decode, decode_file, encode, encode_parts, state_parts
from unseen.errors import NoReplies
from unseen.federation.server.journal import PlaceJournal
from unseen.ops import averaging
from unseen.ops.averaging import RunningMean, mean
from unseen.payload import Payload, State, carried, carries
from unseen.runs.folder import Checkpoint, RunFolder, read_checkpoint
from unseen.state import StoredState, same_bits


class Answer(Payload):
    model: State = carries("model", mean=True)
    other: State | None = carries("model", role="generator")
    samples: int = carries("count")


def weights(seed: int, scale: float = 1.0) -> State:
    rng = torch.Generator().manual_seed(seed)
    return {
        "w": scale * torch.randn(7, 5, generator=rng),
        "scalar": torch.randn((), generator=rng),
        "empty": torch.empty(0, 3),
        "double": torch.randn(11, generator=rng, dtype=torch.float64),
        "half": torch.randn(9, generator=rng).bfloat16(),
        "batches": torch.tensor(seed),
    }


def stored(folder: Path, seed: int) -> tuple[Answer, State]:
    state = weights(seed)
    file = folder / f"{seed}.answer"
    file.write_bytes(encode(Answer(model=state, other=weights(seed + 100), samples=seed)))
    return decode_file(Answer, file, ["model"]), state


def test_it_is_read_like_any_state(tmp_path: Path) -> None:
    answer, state = stored(tmp_path, 3)
    found = answer.model
    assert isinstance(found, StoredState) and type(answer.other) is dict and answer.samples == 3
    assert list(found) == [*state] == [*found.keys()] and len(found) == len(state) and "w" in found and "x" not in found
    ways: list[State] = [
        dict(found), {**found}, found.copy(), found | {}, {} | found, OrderedDict(found), dict(found.items()),
        dict(zip(found.keys(), found.values(), strict=True)), {key: found[key] for key in found},
        {key: found.get(key) for key in found},
    ]  # fmt: skip
    for way in ways:
        assert not any(value.is_meta for value in way.values()) and same_bits(dict(way), state)
    assert found.get("x") is None and found.get("x", 1) == 1
    with pytest.raises(KeyError):
        found["x"]
    assert encode(answer) == encode(Answer(model=state, other=answer.other, samples=3))
    assert next(one.bytes for one in carried(answer)) == sum(value.nbytes for value in state.values())
    net = torch.nn.Linear(5, 7, bias=False)
    net.load_state_dict(StoredState({"weight": found.outline["w"]}, lambda key, first, last: found.part("w", first, last)))
    assert torch.equal(net.weight, state["w"])


def test_what_is_read_is_the_readers_own_and_nothing_can_be_put_in(tmp_path: Path) -> None:
    answer, state = stored(tmp_path, 1)
    answer.model["w"].zero_()
    assert torch.equal(answer.model["w"], state["w"])
    for change in (
        lambda: answer.model.__setitem__("w", torch.zeros(1)), lambda: answer.model.update(state), lambda: answer.model.pop("w"),
        lambda: answer.model.clear(), lambda: answer.model.setdefault("y", torch.zeros(1)), lambda: answer.model.popitem(),
        lambda: answer.model.__delitem__("w"), lambda: answer.model.__ior__(state),
    ):  # fmt: skip
        with pytest.raises(TypeError, match="cannot be changed"):
            change()


def test_a_deleted_file_can_be_read_and_its_handle_goes_with_the_last_reader(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    answer, state = stored(tmp_path, 2)
    (tmp_path / "2.answer").unlink()
    assert same_bits(dict(answer.model), state)
    del answer
    gc.collect()
    assert not before or len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_became_shorter_is_refused(tmp_path: Path) -> None:
    answer, _ = stored(tmp_path, 2)
    os.truncate(tmp_path / "2.answer", 900)
    with pytest.raises(CodecError, match="became shorter"):
        dict(answer.model)


@settings(deadline=None, max_examples=30)
@given(seeds=st.lists(st.integers(0, 50), min_size=1, max_size=4, unique=True), at_once=st.integers(1, 40), data=st.data())
def test_their_mean_has_the_bits_of_the_mean_in_memory(
    seeds: list[int], at_once: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("answers")
    shares = [data.draw(st.sampled_from([0.0, 1.0, 0.1, 7.0, 1e-3])) for _ in seeds]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(averaging, "_AT_ONCE", at_once)
        lazy = [(stored(folder, seed)[0].model, share) for seed, share in zip(seeds, shares, strict=True)]
        plain = [(weights(seed), share) for seed, share in zip(seeds, shares, strict=True)]
        if sum(shares) <= 0:
            with pytest.raises(NoReplies):
                mean(lazy)
            return
        wanted = mean(plain)
        assert same_bits(mean(lazy), wanted)
        for mixed in ([*lazy[:1], *plain[1:]], [*plain[:1], *lazy[1:]]):  # some in memory, some not
            assert same_bits(mean(mixed), wanted)


def test_models_that_differ_are_not_averaged(tmp_path: Path) -> None:
    one, running = stored(tmp_path, 1)[0].model, RunningMean()
    assert isinstance(one, StoredState) and running.empty
    running.add(one)
    assert not running.empty
    fewer = StoredState({k: v for k, v in one.outline.items() if k != "w"}, one.part)
    other = StoredState({**one.outline, "w": torch.empty(5, 7, device="meta")}, one.part)
    for strange in (fewer, other):
        with pytest.raises(ValueError, match=r"differ in their entries: \['w'\]"):
            running.add(strange)


def test_views_are_the_same_numbers_and_no_copies() -> None:
    answer = Answer(model=weights(1), other=None, samples=4)
    data = bytearray(encode(answer))
    seen, copied = decode(Answer, memoryview(data), views=True), decode(Answer, bytes(data), views=True)
    assert same_bits(seen.model, answer.model) and same_bits(copied.model, answer.model)
    at = data.index(answer.model["w"].numpy().tobytes())
    data[at : at + 4] = bytes(4)
    assert seen.model["w"][0, 0] == 0 and copied.model["w"][0, 0] != 0


@pytest.mark.parametrize("spaces", range(9))
def test_a_sender_cannot_have_a_tensor_seen_where_its_type_may_not_begin(spaces: int) -> None:
    data = encode(Answer(model=weights(1), other=None, samples=4))
    length = int.from_bytes(data[:8], "little")
    moved = bytearray((length + spaces).to_bytes(8, "little") + data[8 : 8 + length] + b" " * spaces + data[8 + length :])
    seen = decode(Answer, memoryview(moved), views=True)
    assert same_bits(seen.model, weights(1))
    assert all(value.data_ptr() % value.element_size() == 0 for value in seen.model.values() if value.numel())


@pytest.mark.parametrize("names", [("b", "a"), ("é", "a.b"), ('q"', "z")])
def test_a_models_file_has_the_librarys_bytes(names: tuple[str, str], tmp_path: Path) -> None:
    model = {names[0]: torch.arange(6.0).reshape(2, 3), names[1]: torch.tensor([1, 2]), "c": torch.ones(3).bfloat16().t()}
    about = {"round": "3"}
    parts = state_parts(model, {"about": "x"})
    assert b"".join(parts) == safetensors.torch.save({k: v.contiguous() for k, v in model.items()}, {"about": "x"})
    for at_once in (False, True):
        folder = RunFolder(tmp_path / str(at_once), at_once)
        folder.path.mkdir()
        folder.save_model(folder.model, model, about)
        if at_once:
            assert folder.model.exists()  # nothing waits
        folder.release()
    assert (tmp_path / "True/model.safetensors").read_bytes() == (tmp_path / "False/model.safetensors").read_bytes()


def test_a_run_that_goes_on_does_not_change_what_is_being_written(tmp_path: Path) -> None:
    state = {"w": torch.zeros(1000)}
    folder = RunFolder(tmp_path)
    for number in range(1, 4):
        folder.save_checkpoint(Checkpoint(number, state, {}, None), State)
        state["w"].add_(1.0)
    folder.release()
    assert float(read_checkpoint(folder.checkpoint, State).state["w"][0]) == 2.0


@pytest.mark.parametrize("size", [10, 2**22, 2**23 + 5])
def test_a_question_is_its_bytes_also_after_its_memory_went(size: int, tmp_path: Path) -> None:
    tensor: Tensor = torch.arange(size, dtype=torch.uint8)
    question = PlaceJournal(tmp_path / "1").question((b"head", tensor.numpy().data))
    wanted = b"head" + tensor.numpy().tobytes()
    assert bytes(question.bytes) == wanted
    question.rest()
    assert bytes(question.bytes) == wanted and len(question.bytes) == size + 4
    assert not [*(tmp_path / "1").iterdir()], "the file has no name"


def test_parts_are_the_tensors_own_memory() -> None:
    state = {"w": torch.zeros(1000)}
    parts = encode_parts(Answer(model=state, other=None, samples=1))
    state["w"].fill_(1.0)
    assert parts[1] == torch.ones(1000).numpy().tobytes()
