"""Every fault that a check looks for, planted; and no alarm where there is none."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from unseen.data.checks.check import REPORT_FILE, Report, check, check_cached, data_fingerprint
from unseen.data.domain import Domain, DomainDataset, Holding, Samples
from unseen.task import Classification, Segmentation

CLASSES = ("cat", "dog", "elk")


def classified(name: str, seed: int, samples: int = 24, **changes: Any) -> Domain:
    images = np.random.default_rng(seed).integers(0, 256, (samples, 3, 16, 16), dtype=np.uint8)
    return dataclasses.replace(Domain(name, images, np.arange(samples) % len(CLASSES)), **changes)


def segmented(name: str, seed: int, samples: int = 24) -> Domain:
    """A cup inside a disc, both somewhere in the middle."""
    rng = np.random.default_rng(seed)
    masks = np.zeros((samples, 2, 16, 16), dtype=np.uint8)
    for mask, (top, left) in zip(masks, rng.integers(2, 6, (samples, 2)), strict=True):
        mask[0, top : top + 8, left : left + 8] = 1
        mask[1, top + 3 : top + 6, left + 3 : left + 6] = 1
    return Domain(name, rng.integers(0, 256, (samples, 3, 16, 16), dtype=np.uint8), masks)


def animals(*domains: Domain) -> DomainDataset:
    return DomainDataset("animals", Classification(CLASSES), domains or tuple(classified(n, s) for s, n in enumerate("abc")))


def eyes(*domains: Domain) -> DomainDataset:
    return DomainDataset("eyes", Segmentation(("disc", "cup")), domains or tuple(segmented(n, s) for s, n in enumerate("abc")))


def found(report: Report) -> list[tuple[str, str, str]]:
    return [(f.severity, f.domain, f.kind) for f in report.findings]


def held(domain: Domain, train: list[int], validation: list[int]) -> Holding:
    return Holding("client", domain.name, *(Samples(((domain, np.array(rows, dtype=np.int64)),)) for rows in (train, validation)))


@pytest.mark.parametrize("dataset", [animals(), eyes()], ids=["classification", "segmentation"])
@pytest.mark.parametrize("cheap", [True, False])
def test_clean_data_raise_no_alarm(dataset: DomainDataset, cheap: bool):
    report = check(dataset, cheap=cheap)
    assert report.ok and found(report) == []


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), channels=st.sampled_from([1, 3]), side=st.integers(4, 40))
def test_random_images_raise_no_alarm(seed: int, channels: int, side: int):
    rng = np.random.default_rng(seed)
    domains = [Domain(n, rng.integers(0, 256, (30, channels, side, side), dtype=np.uint8), np.arange(30) % 3) for n in "ab"]
    assert found(check(animals(*domains))) == []


def test_the_card_counts_and_measures():
    groups = np.array([f"patient {row // 2}" for row in range(24)])
    spacing = np.stack([np.full(24, 0.5), np.linspace(1, 2, 24)], axis=1).astype(np.float32)
    domain = classified("a", 0, groups=groups, spacing=spacing)
    card = check(animals(domain)).cards[0]
    assert (card.domain, card.samples, card.channels, card.size, card.groups) == ("a", 24, 3, (16, 16), 12)
    assert card.classes == {"cat": 8, "dog": 8, "elk": 8}
    assert card.spacing == {"rows": (0.5, 0.5, 0.5), "columns": (1.0, pytest.approx(1.5), 2.0)}
    scaled = domain.images / 255
    assert card.intensity is not None
    assert card.intensity.mean == pytest.approx(scaled.mean((0, 2, 3)))
    assert card.intensity.std == pytest.approx(scaled.std((0, 2, 3)))
    assert card.intensity.histogram == pytest.approx(np.histogram(domain.images, bins=16, range=(0, 256))[0] / domain.images.size)


def test_the_card_measures_masks():
    domain = segmented("a", 0)
    domain.labels[3, 1] = 0
    masks = check(eyes(domain)).cards[0].masks
    assert masks is not None
    assert masks.foreground == {"disc": pytest.approx(64 / 256), "cup": pytest.approx(9 / 256 * 23 / 24)}
    assert masks.at_border == {"disc": 0, "cup": 0}
    assert masks.values == {"0": 24 * 512 - 24 * 64 - 23 * 9, "1": 24 * 64 + 23 * 9}
    assert masks.empty == {"disc": (), "cup": (3,)} and masks.full == {"disc": (), "cup": ()}
    assert masks.inside == ((1.0, pytest.approx(23 * 9 / (24 * 64))), (1.0, 1.0))


def test_exact_duplicates_within_a_site_are_a_warning_that_names_contradicting_classes():
    domain = classified("a", 0)
    domain.images[5], domain.images[9] = domain.images[2], domain.images[0]
    report = check(animals(domain))
    assert found(report) == [("warning", "a", "exact duplicates")]
    assert "2 images are exact copies" in report.findings[0].message
    domain.labels[5] = (domain.labels[2] + 1) % 3
    assert "1 of them under another class" in check(animals(domain)).findings[0].message


def test_exact_duplicates_across_sites_are_an_error():
    a, b = classified("a", 0), classified("b", 1)
    b.images[7] = a.images[3]
    report = check(animals(a, b))
    assert found(report) == [("error", "a+b", "exact duplicates")]
    assert "rows 3 = 7" in report.findings[0].message and not report.ok


def test_near_duplicates_across_sites_are_a_warning():
    a, b = classified("a", 0), classified("b", 1)
    b.images[7] = a.images[3] // 2 + 60
    report = check(animals(a, b))
    assert found(report) == [("warning", "a+b", "near duplicates")]
    assert "rows 3 = 7" in report.findings[0].message and report.ok


def test_even_images_are_reported_once_and_not_as_duplicates():
    a, b = classified("a", 0), classified("b", 1)
    a.images[:2], b.images[0] = 0, 0
    assert found(check(animals(a, b))) == [("warning", "a", "constant images"), ("warning", "b", "constant images")]


def test_rows_are_counted_from_the_domains_first_image():
    domain = classified("a", 0, samples=150)
    domain.images[140] = 9
    assert "(row 140)" in check(animals(domain)).findings[0].message


def test_labels_out_of_range_or_form_are_errors():
    wrong = classified("a", 0)
    wrong.labels[4] = 7
    floats = classified("b", 1, labels=np.zeros(24))
    report = check(animals(wrong, floats), cheap=True)
    assert found(report)[:2] == [("error", "a", "label range"), ("error", "b", "label form")]
    assert "(7; row 4); expected 0 to 2" in report.findings[0].message


def test_a_class_that_a_site_lacks_is_a_warning():
    lacking = classified("b", 1, labels=np.arange(24) % 2)
    report = check(animals(classified("a", 0), lacking), cheap=True)
    assert found(report) == [("warning", "b", "lacking classes")]
    assert "lacks elk, which other domains have" in report.findings[0].message


def test_few_samples_are_a_warning_and_none_an_error():
    report = check(animals(classified("a", 0, samples=6), classified("b", 1, samples=0), classified("c", 2)))
    assert found(report) == [("error", "b", "few samples"), ("warning", "a", "few samples")]


def test_an_impossible_spacing_is_an_error():
    spacing = np.ones((24, 2), dtype=np.float32)
    spacing[3, 1], spacing[5, 0] = np.nan, 0
    report = check(animals(classified("a", 0, spacing=spacing)), cheap=True)
    assert found(report) == [("error", "a", "spacing")]
    assert "row 3, 5" in report.findings[0].message
    json.dumps(report.to_json(), allow_nan=False)


def test_empty_full_and_foreign_masks():
    domain = segmented("a", 0)
    domain.labels[0, 1], domain.labels[1, 0], domain.labels[2, 0, 0, 0] = 0, 1, 255
    kinds = {f.kind: f.message for f in check(eyes(domain)).findings}
    assert set(kinds) == {"empty masks", "full masks", "mask values"}
    assert "255" in kinds["mask values"] and "of cup are empty (row 0)" in kinds["empty masks"] and "row 1" in kinds["full masks"]


def test_masks_of_another_form_are_an_error():
    domain = segmented("a", 0)
    assert found(check(eyes(dataclasses.replace(domain, labels=domain.labels[:, :1])))) == [("error", "a", "label form")]
    assert found(check(eyes(dataclasses.replace(domain, labels=domain.labels.astype(np.int64))))) == [("error", "a", "label form")]


@pytest.mark.parametrize("sites", ["ab", "abc", "abcd"])
def test_a_site_with_inverted_masks_is_an_error(sites: str):
    domains = [segmented(name, seed) for seed, name in enumerate(sites)]
    domains[1].labels[:] = 1 - domains[1].labels
    inverted = [f for f in check(eyes(*domains)).findings if f.severity == "error" and "look inverted" in f.message]
    assert {f.domain for f in inverted} == {"b"} and len(inverted) == 2  # disc and cup


def test_a_site_with_larger_structures_is_not_inverted():
    large = segmented("b", 1)
    large.labels[:, 0, 1:15, 1:15] = 1  # 77 % of the image; 25 % at the others, which is what inverted masks would have
    assert found(check(eyes(segmented("a", 0), large, segmented("c", 2)))) == []


def test_a_site_with_more_foreground_everywhere_is_not_inverted():
    """60 % against 10 %, at the border too; inverted it would have 40 %, which is no better match."""
    domains = [segmented(name, seed, samples=40) for seed, name in enumerate("abc")]
    for domain, share in zip(domains, (0.1, 0.6, 0.1), strict=True):
        domain.labels[:, 0] = np.random.default_rng(0).random((40, 16, 16)) < share
    assert "label maps" not in {f.kind for f in check(eyes(*domains)).findings}


def test_a_site_with_swapped_structures_is_an_error():
    domains = [segmented(name, seed) for seed, name in enumerate("abc")]
    domains[2].labels[:] = domains[2].labels[:, ::-1].copy()
    report = check(eyes(*domains))
    assert found(report) == [("error", "c", "label maps")]
    assert "disc lies inside cup, at other sites cup inside disc" in report.findings[0].message


def test_a_structure_that_a_site_lacks_is_a_warning():
    a, b = segmented("a", 0), segmented("b", 1)
    b.labels[:, 1] = 0
    assert ("warning", "b", "lacking classes") in found(check(eyes(a, b)))


def test_a_patient_on_both_sides_of_the_holdings_is_an_error():
    groups = np.array([f"patient {row // 2}" for row in range(24)])
    domain = classified("a", 0, groups=groups)
    dataset = animals(domain, classified("b", 1))
    assert found(check(dataset, [held(domain, [0, 1, 4], [2, 3])], cheap=True)) == []
    report = check(dataset, [held(domain, [0, 4], [2, 3]), held(domain, [6], [1])], cheap=True)
    assert found(report) == [("error", "a", "both sides")]
    assert "1 patients" in report.findings[0].message and "patient 0" in report.findings[0].message


def test_a_sample_on_both_sides_is_an_error_without_patients_too():
    dataset = animals()
    report = check(dataset, [held(dataset["a"], [0, 1], [1, 2])], cheap=True)
    assert found(report) == [("error", "a", "both sides")] and "1 samples" in report.findings[0].message


def test_a_patient_on_both_sides_of_the_official_split_is_an_error():
    split = np.array(["train"] * 12 + ["test"] * 12)
    groups = np.array([f"p{row // 5}" for row in range(24)])  # p2: rows 10 to 14
    report = check(animals(classified("a", 0, groups=groups, split=split)), cheap=True)
    assert found(report) == [("error", "a", "both sides")] and "p2" in report.findings[0].message


def test_what_preparing_found_is_on_the_card_and_among_the_findings():
    preparation = {
        "a": {"sizes": {"500x375": 20}, "modes": {"RGB": 20}, "unreadable": ["x.jpg"], "mask_values": {"0": 5, "255": 9}},
        "b": {"width": [200, 500], "height": [100, 375], "mask_values": {"0": 5, "255": 9}},
        "c": {"mask_values": {"0": 5, "1": 9}},
        "left out": {},
    }
    report = check(animals(), cheap=True, preparation=preparation)
    assert found(report) == [("warning", "a", "unreadable"), ("warning", "c", "label maps")]
    assert "values 0, 1; other sites 0, 255" in report.findings[1].message
    text = shown(report)
    assert "width 200 to 500, height 100 to 375 px" in text
    assert "500x375: 20" in text and "RGB: 20" in text and "x.jpg" in text


def shown(report: Report, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    report.render(console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_rendered_report_tells_errors_from_warnings():
    a, b = classified("[red]a", 0, samples=6), classified("b", 1)
    b.images[7] = a.images[3]
    text = shown(check(animals(a, b)))
    assert "cat 2, dog 2, elk 2" in text and "0 |" in text and "█" in text
    assert text.index("error [red]a+b: ") < text.index("warning [red]a: ")  # a name in brackets is no markup
    assert "animals: 1 error, 1 warning" in text


def test_a_segmentation_card_can_be_read():
    text = shown(check(eyes()))
    assert "disc: 25.0% of the image, 0 empty, 0 full" in text and "mask values" in text
    assert "mask values" not in shown(check(eyes(), cheap=True))


def test_a_report_survives_json():
    spacing = np.ones((24, 2), dtype=np.float32)
    for report in (check(eyes()), check(eyes(), cheap=True), check(animals(classified("a", 0, samples=24, spacing=spacing)))):
        assert Report.from_json(json.loads(json.dumps(report.to_json(), allow_nan=False))) == report
    assert check(eyes()).to_json()["ok"] is True


def test_a_cheap_check_reads_no_image_and_no_mask():
    class Unreadable(np.ndarray):  # type: ignore[type-arg]
        def __getitem__(self, key: Any) -> Any:
            raise AssertionError("read")

    domains = [segmented(name, seed) for seed, name in enumerate("ab")]
    closed = [dataclasses.replace(d, images=d.images.view(Unreadable), labels=d.labels.view(Unreadable)) for d in domains]
    assert check(eyes(*closed), cheap=True).ok
    with pytest.raises(AssertionError, match="read"):
        check(eyes(*closed))


def on_disk(folder: Path, name: str, seed: int) -> Domain:
    domain = classified(name, seed)
    np.save(folder / f"{name}.npy", domain.images)
    return dataclasses.replace(domain, images=np.load(folder / f"{name}.npy", mmap_mode="r"))


def test_a_stored_report_is_read_again_until_the_data_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dataset = animals(on_disk(tmp_path, "a", 0), on_disk(tmp_path, "b", 1))
    first = check_cached(dataset, tmp_path)
    calls = []
    monkeypatch.setattr("unseen.data.checks.check.look_through", lambda *_: calls.append("looked") or pytest.fail("looked again"))
    assert check_cached(animals(on_disk_again(tmp_path, "a", 0), on_disk_again(tmp_path, "b", 1)), tmp_path) == first
    monkeypatch.undo()
    changed = animals(on_disk(tmp_path, "a", 5), on_disk(tmp_path, "b", 5))
    assert found(check_cached(changed, tmp_path)) == [("error", "a+b", "exact duplicates")]


def on_disk_again(folder: Path, name: str, seed: int) -> Domain:
    return dataclasses.replace(classified(name, seed), images=np.load(folder / f"{name}.npy", mmap_mode="r"))


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"key": 1}', '{"key": "KEY", "report": {"cards": [{}]}}', "\x00"])
def test_a_damaged_stored_report_is_made_anew(tmp_path: Path, content: str):
    dataset = animals()
    (tmp_path / REPORT_FILE).write_text(content.replace("KEY", data_fingerprint(dataset)))
    assert check_cached(dataset, tmp_path) == check(dataset)
    assert json.loads((tmp_path / REPORT_FILE).read_text())["key"] == data_fingerprint(dataset)


def test_a_folder_that_cannot_be_written_to_can_be_checked(tmp_path: Path):
    assert check_cached(animals(), tmp_path / "not there").ok


def test_the_fingerprint_follows_every_array_and_what_preparing_found(tmp_path: Path):
    domain = on_disk(tmp_path, "a", 0)
    split, spacing = np.array(["train"] * 24), np.ones((24, 2), dtype=np.float32)
    others = [
        dataclasses.replace(domain, labels=domain.labels[::-1]),
        dataclasses.replace(domain, split=split),
        dataclasses.replace(domain, groups=split),
        dataclasses.replace(domain, spacing=spacing),
        dataclasses.replace(domain, images=domain.images[::-1]),
        dataclasses.replace(domain, name="other"),
    ]
    keys = [data_fingerprint(animals(one)) for one in (domain, *others)] + [data_fingerprint(animals(domain), {"a": {"modes": {"L": 24}}})]
    assert len(set(keys)) == len(keys)
    assert data_fingerprint(animals(on_disk_again(tmp_path, "a", 0))) == keys[0]
