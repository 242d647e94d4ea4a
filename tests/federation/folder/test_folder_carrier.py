"""Letters in a folder: the same messages come out that went in, through kills, copies, halves and whatever others put there."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unseen.errors import BadInput, SiteProcessLost
from unseen.federation.folder import letters, place
from unseen.federation.folder import site as site_module
from unseen.federation.folder.carrier import FolderCarrier
from unseen.federation.folder.place import parse_carrier
from unseen.federation.folder.site import SiteLetters, answer_letters
from unseen.federation.kits import Federation, Kit, init, open_kit
from unseen.federation.messages import Message, SignedMessage, open_message, sign
from unseen.federation.waiting import Pause

SITES, STOP = ("north", "south"), 99


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return init(tmp_path_factory.mktemp("one") / "server", "localhost", SITES)


@pytest.fixture(scope="module")
def kits(federation: Federation) -> dict[str, Kit]:
    return {name: open_kit(federation.path / f"kits/{name}.kit", federation.path.parent / name) for name in SITES}


@pytest.fixture
def share(tmp_path: Path) -> Path:
    (tmp_path / "share").mkdir()
    return tmp_path / "share"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pause, "least", 0.001)
    monkeypatch.setattr(Pause, "most", 0.01)


def asked(federation: Federation, number: int, payload: bytes = b"weights", to: str = "north") -> SignedMessage:
    return sign(Message({"federation": federation.id, "to": to, "round": number}, payload), federation.signing, "question")


class Desk:
    """A site's answers: work for a new question, and what was given before for one that it knows."""

    def __init__(self, kit: Kit) -> None:
        self.kit, self.worked, self.asked = kit, 0, 0
        self.given: dict[bytes, SignedMessage] = {}

    def answer(self, question: SignedMessage) -> SignedMessage:
        self.asked += 1
        if question.signature not in self.given:
            header = open_message(question, self.kit.server_key, "question", 10**9).header
            if header["round"] == STOP:
                raise Killed
            self.worked += 1
            reply = Message({"from": self.kit.client, "round": header["round"]}, bytes(question.payload)[::-1])
            self.given[question.signature] = sign(reply, self.kit.signing, "answer")
        return self.given[question.signature]


def letters_of(kit: Kit, share: Path, desk: Desk, said: list[str] | None = None) -> SiteLetters:
    return SiteLetters(kit, share, desk.answer, (said if said is not None else []).append)


def now(carrier: FolderCarrier, question: SignedMessage, to: str = "north", seconds: float = 0.0) -> SignedMessage | str:
    """What the folder has for the server at this moment."""
    ((name, answer),) = carrier.exchange({to: question}, seconds)
    assert name == to
    return answer


def names(share: Path) -> list[str]:
    return sorted(file.name[:2] for file in share.iterdir())


@pytest.mark.parametrize("size", [0, 1, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20 + 17])
def test_messages_of_all_sizes_come_out_as_they_went_in(size: int, federation: Federation, kits: dict[str, Kit], share: Path) -> None:
    carrier, desk = FolderCarrier(federation, share), Desk(kits["north"])
    question = asked(federation, 1, os.urandom(size))
    assert now(carrier, question) == "no answer within 0 s"
    assert letters_of(kits["north"], share, desk).look() and not letters_of(kits["north"], share, desk).look()
    assert now(carrier, question) == desk.given[question.signature]
    for file in share.iterdir():
        data = file.read_bytes()
        assert len(file.name) < 64 and file.name == file.name.lower() and ":" not in file.name
        assert question.payload[:40] not in data or size < 40
        assert b"round" not in data and file.stat().st_mode & 0o777 == 0o644


def test_rounds_in_threads_leave_nothing_behind(federation: Federation, kits: dict[str, Kit], share: Path) -> None:
    desks, said = {name: Desk(kit) for name, kit in kits.items()}, []

    def work(name: str) -> None:
        with pytest.raises(Killed):
            answer_letters(kits[name], share, desks[name].answer, said.append)

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in SITES]
    for thread in threads:
        thread.start()
    carrier = FolderCarrier(federation, share, said.append)
    for number in range(1, 6):
        questions = {name: asked(federation, number, b"w" * number, name) for name in SITES}
        answers = dict(carrier.exchange(questions, 60.0))
        assert answers == {name: desks[name].given[questions[name].signature] for name in SITES}
        assert names(share) == ["a-", "a-", "q-", "q-"]
    carrier.close()
    assert names(share) == [] and said == []
    list(carrier.exchange({name: asked(federation, STOP, b"", name) for name in SITES}, 0.0))
    for thread in threads:
        thread.join(60)
    assert [desk.worked for desk in desks.values()] == [5, 5] and not any(thread.is_alive() for thread in threads)


def killed_at(step: int, patch: pytest.MonkeyPatch, before: bool) -> None:
    """The process ends before or after its step-th act on the folder."""
    acts = iter(range(10**6))

    def wrapped(act: Callable[..., object]) -> Callable[..., object]:
        def go(*args: object, **more: object) -> object:
            number = next(acts)
            if number == step and before:
                raise Killed
            result = act(*args, **more)
            if number == step:
                raise Killed
            return result

        return go

    for name in ("replace", "open", "unlink", "fsync", "listdir"):
        patch.setattr(os, name, wrapped(getattr(os, name)))
    patch.setattr(place, "write_letter", wrapped(place.write_letter))


@pytest.mark.parametrize("before", [True, False])
def test_kills_between_any_two_steps_cost_nothing(before: bool, federation: Federation, kits: dict[str, Kit], share: Path) -> None:
    """Server and site are killed in turn, at every act they do on the folder, and started again; three rounds come out as ever."""
    desk, kills = Desk(kits["north"]), 0
    for step in range(16):
        carrier: FolderCarrier | None = None
        for number in (1, 2, 3):
            question = asked(federation, number, f"step {step}".encode())
            for victim in ("server", "site", "nobody", "nobody"):
                with pytest.MonkeyPatch.context() as patch:
                    if victim == "server":
                        killed_at(step, patch, before)
                    try:
                        carrier = carrier or FolderCarrier(federation, share)
                        answer = now(carrier, question)
                    except Killed:
                        carrier, kills = None, kills + 1
                        leave_a_half(share, "q", federation)
                with pytest.MonkeyPatch.context() as patch:
                    if victim == "site":
                        killed_at(step, patch, before)
                    try:
                        letters_of(kits["north"], share, desk).look()
                    except Killed:
                        kills += 1
                        leave_a_half(share, "a", federation)
            assert carrier is not None and answer == now(carrier, question) == desk.given[question.signature]
        carrier.close()
        letters_of(kits["north"], share, desk)
        assert names(share) == []
    assert desk.worked == 3 * 16 and kills > 32  # no process does more than 16 acts in a turn


def leave_a_half(share: Path, initial: str, federation: Federation) -> None:
    """A kill leaves the file that was being written; in this process it was tidied up."""
    whose = "-".join(place._tag(text) for text in (federation.id, "north"))
    (share / f"~{initial}-{whose}-{'0' * 12}.tmp").write_bytes(b"unseen letter 1\nhalf")


def test_an_answer_is_found_again_and_given_again(federation: Federation, kits: dict[str, Kit], share: Path) -> None:
    desk, question = Desk(kits["north"]), asked(federation, 1)
    now(FolderCarrier(federation, share), question)
    site = letters_of(kits["north"], share, desk)
    site.look()
    (question_file,) = share.glob("q-*")
    question_file.unlink()  # the server was killed, and somebody tidied up
    assert now(FolderCarrier(federation, share), question) == desk.given[question.signature] and desk.asked == 1
    (answer_file,) = share.glob("a-*")
    answer_file.unlink()
    assert now(FolderCarrier(federation, share), question) == "no answer within 0 s"
    letters_of(kits["north"], share, desk).look()
    assert now(FolderCarrier(federation, share), question) == desk.given[question.signature]
    assert (desk.asked, desk.worked) == (2, 1)


def test_a_late_answer_is_superseded_and_taken_away(
    federation: Federation, kits: dict[str, Kit], share: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier, desk = FolderCarrier(federation, share), Desk(kits["north"])
    site = letters_of(kits["north"], share, desk)
    first, second = asked(federation, 1), asked(federation, 2)
    assert now(carrier, first) == "no answer within 0 s"

    def slow(question: SignedMessage) -> SignedMessage:
        site._answer = desk.answer
        assert now(carrier, second) == "no answer within 0 s"  # the server went on while the site worked
        return desk.answer(question)

    site._answer = slow
    site.look()
    assert names(share) == ["a-", "q-"]
    site.look()
    assert now(carrier, second) == desk.given[second.signature]
    assert names(share) == ["a-", "a-", "q-"]  # one of them answers what nobody asks any more
    monkeypatch.setattr(site_module, "_GRACE", 0.0)
    site.look()
    assert names(share) == ["a-", "q-"] and now(carrier, second) == desk.given[second.signature]


def test_a_question_without_an_answer_stays_when_the_server_stops(federation: Federation, kits: dict[str, Kit], share: Path) -> None:
    first, second, desk = asked(federation, 1), asked(federation, 2), Desk(kits["north"])
    carrier = FolderCarrier(federation, share)
    now(carrier, first)
    carrier.close()
    assert names(share) == ["q-"]
    carrier = FolderCarrier(federation, share)  # another process, which asks something else first
    now(carrier, second)
    letters_of(kits["north"], share, desk).look()
    assert now(carrier, second) == desk.given[second.signature] and names(share) == ["a-", "a-", "q-", "q-"]
    assert now(carrier, first) == desk.given[first.signature] and names(share) == ["a-", "q-"]
    now(FolderCarrier(federation, share), asked(federation, 3))  # killed here
    carrier.close()
    assert names(share) == []  # everything that this one asked was answered


def test_two_federations_share_a_folder(federation: Federation, kits: dict[str, Kit], share: Path, tmp_path: Path) -> None:
    other = init(tmp_path / "other", "localhost", ["north"])
    other_kit = open_kit(other.path / "kits/north.kit", tmp_path / "other-north")
    said: list[str] = []
    ours, theirs = FolderCarrier(federation, share, said.append), FolderCarrier(other, share, said.append)
    mine, yours = asked(federation, 1), asked(other, 1)
    now(ours, mine), now(theirs, yours)
    here, there = Desk(kits["north"]), Desk(other_kit)
    assert letters_of(kits["north"], share, here, said).look() and letters_of(other_kit, share, there, said).look()
    assert (here.worked, there.worked, said) == (1, 1, [])
    assert now(ours, mine) == here.given[mine.signature] and now(theirs, yours) == there.given[yours.signature]
    ours.close()
    assert names(share) == ["a-", "q-"] and now(theirs, yours) == there.given[yours.signature]


def test_a_letter_that_arrives_in_parts_is_read_when_it_is_whole(
    federation: Federation, kits: dict[str, Kit], share: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By growing, and by holes in a file that has its whole length at once."""
    carrier, desk, said = FolderCarrier(federation, share), Desk(kits["north"]), []
    question = asked(federation, 1, os.urandom(2_500_000))
    now(carrier, question)
    (file,) = share.glob("q-*")
    whole = file.read_bytes()
    site = letters_of(kits["north"], share, desk, said)
    monkeypatch.setattr(place, "_AGAIN", 0.0)
    for part in (
        b"",
        whole[:10],
        whole[:100],
        whole[:1000],
        whole[:-1],
        whole[:1000] + bytes(len(whole) - 1000),
        whole[:-5] + bytes(5),
        whole + b"x",
    ):
        file.write_bytes(part)
        assert not site.look() and desk.asked == 0
    assert len(said) == 1 and "is not read" in said[0]
    file.write_bytes(whole)
    assert site.look() and now(carrier, question) == desk.given[question.signature]


def test_a_broken_letter_is_not_read_over_and_over(
    federation: Federation, kits: dict[str, Kit], share: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now(FolderCarrier(federation, share), asked(federation, 1))
    (file,) = share.glob("q-*")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    site, opened = letters_of(kits["north"], share, Desk(kits["north"])), []
    plain = place.open_letter
    monkeypatch.setattr(place, "open_letter", lambda *args: (opened.append(1), plain(*args))[1])
    for _ in range(5):
        assert not site.look()
    assert len(opened) == 1


def test_copies_and_other_files_are_left_alone_and_told_of_once(federation: Federation, kits: dict[str, Kit], share: Path) -> None:
    said: list[str] = []
    carrier, desk = FolderCarrier(federation, share, said.append), Desk(kits["north"])
    question = asked(federation, 1)
    now(carrier, question)
    (file,) = share.glob("q-*")
    others = [f"{file.stem} (north's conflicted copy 2026-11-18).letter", "README.txt", "~$lock", ".DS_Store", "holiday.jpg"]
    for name in others:
        shutil.copy(file, share / name)
    site = letters_of(kits["north"], share, desk, said)
    for _ in range(3):
        site.look()
    assert now(carrier, question) == desk.given[question.signature] and desk.worked == 1
    assert len([text for text in said if "conflicted copy" in text]) == 1 and len([text for text in said if "other files" in text]) == 1
    carrier.close()
    assert {name for name in others if (share / name).exists()} == set(others)


def test_links_pipes_and_folders_under_a_letters_name(federation: Federation, kits: dict[str, Kit], share: Path, tmp_path: Path) -> None:
    """Nothing outside the folder is read or written, and nobody waits for a pipe."""
    carrier, desk, said = FolderCarrier(federation, share), Desk(kits["north"]), []
    question = asked(federation, 1)
    now(carrier, question)
    (file,) = share.glob("q-*")
    outside = tmp_path / "outside"
    shutil.move(file, outside)
    answer_file = share / ("a" + file.name[1:])
    site = letters_of(kits["north"], share, desk, said)
    handles = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for make in (lambda: file.symlink_to(outside), lambda: os.mkfifo(file), file.mkdir):
        make()
        assert not site.look() and desk.asked == 0
        file.rmdir() if file.is_dir() else file.unlink()
    assert not handles or len(os.listdir("/proc/self/fd")) == handles
    shutil.copy(outside, file)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    answer_file.symlink_to(victim)
    assert site.look() and victim.read_text() == "precious" and not answer_file.is_symlink()
    answer = answer_file.read_bytes()
    answer_file.unlink()
    answer_file.mkdir()
    (answer_file / "inner").write_text("kept")
    assert not site.look() and now(carrier, question) == "no answer within 0 s"
    carrier.close()
    assert (answer_file / "inner").read_text() == "kept" and any("takes no letter" in text for text in said)
    shutil.rmtree(answer_file)
    assert site.look() and answer_file.stat().st_size == len(answer)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_stands_in_a_file_nobody_falls_over(
    data: st.DataObject, federation: Federation, kits: dict[str, Kit], share: Path
) -> None:
    carrier, desk = FolderCarrier(federation, share), Desk(kits["north"])
    question = asked(federation, 1)
    now(carrier, question)
    site = letters_of(kits["north"], share, desk)
    initial = data.draw(st.sampled_from("qa"))
    if initial == "a":
        site.look()
    (file,) = share.glob(f"{initial}-*")
    whole = file.read_bytes()
    changed = data.draw(
        st.one_of(
            st.binary(max_size=300),
            st.binary(max_size=300).map(lambda b: b"unseen letter 1\n" + b),
            st.tuples(st.integers(0, len(whole) - 1), st.integers(1, 255)).map(
                lambda change: whole[: change[0]] + bytes([whole[change[0]] ^ change[1]]) + whole[change[0] + 1 :]
            ),
            st.integers(0, len(whole) - 1).map(lambda n: whole[:n]),
            st.binary(min_size=1, max_size=50).map(lambda b: whole + b),
        )
    )
    file.write_bytes(changed)
    if initial == "q":
        assert not site.look() and desk.asked == 0
    else:
        assert now(FolderCarrier(federation, share), question) == "no answer within 0 s"
    for file in share.iterdir():
        file.unlink()


def test_a_letter_counts_only_from_its_sender_to_its_receiver_under_its_name(
    federation: Federation, kits: dict[str, Kit], share: Path
) -> None:
    carrier, north, south = FolderCarrier(federation, share), Desk(kits["north"]), Desk(kits["south"])
    first, second = asked(federation, 1), asked(federation, 2)
    now(carrier, first)
    letters_of(kits["north"], share, north).look()
    (answer,) = share.glob("a-*")
    old = answer.read_bytes()
    now(carrier, second)
    (question,) = share.glob("q-*")
    (share / ("a" + question.name[1:])).write_bytes(old)  # an old answer under the new name
    assert now(carrier, second) == "no answer within 0 s"
    folder = place.LetterFolder(share, federation.id, "north", place.SayOnce(lambda text: None))
    key = folder.key_of(second)
    forged = sign(Message({"from": "north", "round": 2}), kits["south"].signing, "answer")
    assert folder.write("answer", key, forged, kits["south"].signing, kits["south"].server_box)  # another site in this one's name
    assert now(carrier, second) == "no answer within 0 s"
    stray = asked(federation, 3)
    assert folder.write("question", folder.key_of(stray), stray, kits["south"].signing, federation.box_key("north"))
    assert folder.write("question", "0" * 24, stray, federation.signing, federation.box_key("north"))  # a name that is not its own
    assert folder.write("answer", key, second, kits["north"].signing, federation.box_key("north"))  # not for the server's key
    assert now(carrier, second) == "no answer within 0 s"
    folder.delete("answer", key)
    letters_of(kits["north"], share, north).look()
    letters_of(kits["south"], share, south).look()
    assert (north.worked, south.worked) == (2, 0)
    assert now(carrier, second) == north.given[second.signature]


def test_what_is_too_large_is_not_read(federation: Federation, kits: dict[str, Kit], share: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now(FolderCarrier(federation, share), asked(federation, 1))
    (file,) = share.glob("q-*")
    with file.open("ab") as stream:
        stream.truncate(letters.MOST_LETTER + 1)  # a hole: it takes no room on the disk
    said: list[str] = []
    assert not letters_of(kits["north"], share, Desk(kits["north"]), said).look() and "a letter at most" in said[0]
    with file.open("r+b") as stream:
        stream.truncate(letters.MOST_LETTER - 1)
    assert not letters_of(kits["north"], share, Desk(kits["north"]), said).look() and "of 1" not in said[0]


def test_what_a_letter_says_of_a_failure_is_plain_text(federation: Federation, kits: dict[str, Kit], share: Path) -> None:
    carrier, question, kit = FolderCarrier(federation, share), asked(federation, 1), kits["north"]
    now(carrier, question)
    site = place.LetterFolder(share, kit.federation, kit.client, place.SayOnce(print))
    site.write("failure", site.key_of(question), "\x1b[2J\x1b[Hroot@server:~# \r\n", kit.signing, kit.server_box)
    assert now(carrier, question) == "failed by the site: ?[2J?[Hroot@server:~# ??"


def test_a_site_whose_process_ended_says_so_and_tries_again_when_asked(federation: Federation, kits: dict[str, Kit], share: Path) -> None:
    carrier, desk, said = FolderCarrier(federation, share), Desk(kits["north"]), []
    question = asked(federation, 1)

    def lost(_: SignedMessage) -> SignedMessage:
        raise SiteProcessLost("ended twice over one question")

    now(carrier, question)
    site = SiteLetters(kits["north"], share, lost, said.append)
    assert site.look() and not site.look() and said == ["ended twice over one question"]
    assert now(carrier, question) == "failed by the site: its process ended" and names(share) == []
    now(carrier, question)
    assert site.look()
    assert letters_of(kits["north"], share, desk).look()  # a new process, whose owner gave it more memory
    assert now(carrier, question) == desk.given[question.signature]


def test_a_folder_that_goes_away_or_is_full_comes_back(
    federation: Federation, kits: dict[str, Kit], share: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    carrier, desk = FolderCarrier(federation, share, said.append), Desk(kits["north"])
    site = letters_of(kits["north"], share, desk, said)
    question, away = asked(federation, 1), share.with_name("away")
    share.rename(away)
    assert now(carrier, question) == "no answer within 0 s" and not site.look() and not site.look()
    assert len([text for text in said if "cannot be read" in text]) == 1
    away.rename(share)
    now(carrier, question)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(place, "write_letter", full)
        assert not site.look() and not site.look()
    assert names(share) == ["q-"] and desk.asked == 1  # the answer waits, and is not worked out again
    assert site.look() and now(carrier, question) == desk.given[question.signature] and desk.asked == 1


def test_a_share_that_can_neither_sync_nor_change_modes(
    federation: Federation, kits: dict[str, Kit], share: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    for name in ("fsync", "fchmod"):
        monkeypatch.setattr(os, name, cannot)
    carrier, desk, question = FolderCarrier(federation, share), Desk(kits["north"]), asked(federation, 1)
    now(carrier, question)
    assert letters_of(kits["north"], share, desk).look() and now(carrier, question) == desk.given[question.signature]


def test_clocks_do_not_matter(federation: Federation, kits: dict[str, Kit], share: Path) -> None:
    carrier, desk = FolderCarrier(federation, share), Desk(kits["north"])
    site = letters_of(kits["north"], share, desk)
    for number, when in enumerate((0, 2**31 - 1, 10**9), 1):
        question = asked(federation, number)
        now(carrier, question)
        for file in share.iterdir():
            os.utime(file, (when, when))
        assert site.look()
        for file in share.iterdir():
            os.utime(file, (when, when))
        assert now(carrier, question) == desk.given[question.signature]


def test_the_deadline_is_kept_and_may_be_days(
    federation: Federation, kits: dict[str, Kit], share: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, rests = [0.0], []
    monkeypatch.setattr(Pause, "least", 0.2)
    monkeypatch.setattr(Pause, "most", 3.0)
    monkeypatch.setattr(place.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(place.time, "sleep", lambda seconds: (rests.append(seconds), clock.__setitem__(0, clock[0] + seconds)))
    assert now(FolderCarrier(federation, share), asked(federation, 1), seconds=600.0) == "no answer within 600 s"
    assert clock[0] == pytest.approx(600.0) and rests[0] < 0.3 and max(rests) == 3.0 and rests == [*sorted(rests[:-1]), rests[-1]]


@pytest.mark.parametrize("text", ["folder", "folder:", "folder:nowhere/at/all", "stick:there", "", "FLOWER", "folder:file"])
def test_carriers_that_are_not_taken(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(BadInput, match="carrier"):
        parse_carrier(text)


def test_carriers_that_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a share").mkdir()
    assert parse_carrier("flower") is None and parse_carrier("folder:a share") == tmp_path / "a share"
    assert stat.S_ISDIR((tmp_path / "a share").stat().st_mode)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(BadInput, match="may not write"):
        parse_carrier("folder:a share")


def test_flower_is_not_needed() -> None:
    for file in Path(place.__file__).parent.glob("*.py"):
        assert "flwr" not in file.read_text() and "federation.flower" not in file.read_text()
