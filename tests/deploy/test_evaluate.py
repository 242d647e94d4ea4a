"""Acceptance at a new site: the numbers by hand, the verdict, the warnings, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import balanced_accuracy_score
from typer.testing import CliRunner

from unseen.cli import app
from unseen.data.domain import Domain, DomainDataset
from unseen.deploy import Deployed, evaluate
from unseen.deploy.acceptance_page import render_acceptance
from unseen.errors import BadInput
from unseen.task import Classification, Segmentation


def test_metrics_are_those_of_the_predictions(classifier: Deployed, tiny: DomainDataset) -> None:
    answer = evaluate(classifier, tiny, draws=50)
    truth = np.concatenate([d.labels for d in tiny.domains])
    found = np.concatenate([classifier.logits(d.images).argmax(1).numpy() for d in tiny.domains])
    assert answer.metrics["accuracy"].value == pytest.approx((truth == found).mean())
    assert answer.metrics["balanced_accuracy"].value == pytest.approx(balanced_accuracy_score(truth, found))
    low, high = answer.metrics["accuracy"].low, answer.metrics["accuracy"].high
    assert low is not None and high is not None and low <= answer.metrics["accuracy"].value <= high
    assert len(answer.cases) == 90 and answer.sites["b"]["cases"] == 30 and list(answer.classes) == ["x", "y", "z"]
    assert answer.classes["y"]["accuracy"] == pytest.approx((found[truth == 1] == 1).mean())
    assert answer.passed is None


def test_the_verdict(classifier: Deployed, tiny: DomainDataset) -> None:
    value = evaluate(classifier, tiny, draws=20).metrics["accuracy"].value
    good = evaluate(classifier, tiny, draws=20, thresholds={"accuracy": value, "ece": 1.0})
    assert good.passed and [check.sure for check in good.checks] == [value == good.metrics["accuracy"].low, True]
    bad = evaluate(classifier, tiny, draws=20, thresholds={"accuracy": 0.1, "ece": -0.1})  # lower is better for ece
    assert [check.passed for check in bad.checks] == [True, False] and bad.passed is False
    with pytest.raises(BadInput, match="no metric 'acuracy'; did you mean 'accuracy'"):
        evaluate(classifier, tiny, draws=2, thresholds={"acuracy": 0.1})


def test_segmentation_by_case_and_patient(segmenter: Deployed, tiny_masks: DomainDataset) -> None:
    patients = np.array(["p1"] * 4 + ["p2"] * 4)
    site = replace(tiny_masks, domains=(replace(tiny_masks["c"], groups=patients),))
    answer = evaluate(segmenter, site, draws=50)
    found = segmenter.logits(site["c"].images).numpy() > 0
    truth = site["c"].labels > 0
    dice = 2 * (found & truth).sum((2, 3)) / (found.sum((2, 3)) + truth.sum((2, 3)))
    assert [case["dice"] for case in answer.cases] == pytest.approx(dice.mean(1).tolist())
    assert answer.metrics["dice_cup"].value == pytest.approx(dice[:, 1].mean())
    assert answer.groups["c/p2"]["dice"] == pytest.approx(dice[4:].mean())
    low, high = answer.metrics["dice"].low, answer.metrics["dice"].high
    means = sorted([dice[:4].mean(), dice[4:].mean()])
    assert low == pytest.approx(means[0]) and high == pytest.approx(means[1])  # two patients: only their means can be drawn alone
    turned = replace(site, task=Segmentation(("cup", "disc")), domains=(replace(site["c"], labels=site["c"].labels[:, ::-1].copy()),))
    assert evaluate(segmenter, turned, draws=2).metrics["dice_cup"].value == pytest.approx(answer.metrics["dice_cup"].value)


def test_a_site_that_looks_like_none_is_warned_about(classifier: Deployed, tiny: DomainDataset) -> None:
    own = evaluate(classifier, replace(tiny, domains=(tiny["a"],)), draws=2)
    assert own.style["a"].nearest == "a" and own.style["a"].distances["a"] == pytest.approx(0, abs=1e-3) and not own.style["a"].outside
    noise = np.random.default_rng(0).choice(np.array([0, 255], dtype=np.uint8), (20, 3, 8, 8))
    strange = replace(tiny, domains=(Domain("noise", noise, tiny["c"].labels),))
    answer = evaluate(classifier, strange, draws=2)
    assert answer.style["noise"].outside and any("looks unlike every training site" in text for text in answer.warnings)
    assert "looks unlike" in render_acceptance(answer)


def test_a_card_without_styles_cannot_tell(segmenter: Deployed, tiny_masks: DomainDataset) -> None:
    assert any("no style statistics" in text for text in evaluate(segmenter, tiny_masks, draws=2).warnings)


def test_what_is_refused(classifier: Deployed, tiny: DomainDataset, tiny_masks: DomainDataset) -> None:
    with pytest.raises(BadInput, match="which the model never saw"):
        evaluate(classifier, replace(tiny, task=Classification(("x", "y", "tumour"))))
    with pytest.raises(BadInput, match="does classification"):
        evaluate(classifier, tiny_masks)
    small = Domain("a", tiny["a"].images[:, :, :4], tiny["a"].labels)
    with pytest.raises(BadInput, match="this model takes"):
        evaluate(classifier, replace(tiny, domains=(small,)))
    empty = Domain("a", tiny["a"].images[:0], tiny["a"].labels[:0])
    with pytest.raises(BadInput, match="has no images"):
        evaluate(classifier, replace(tiny, domains=(empty,)))


def test_fewer_classes_in_another_order_are_matched_by_name(classifier: Deployed, tiny: DomainDataset) -> None:
    c = tiny["c"]
    kept = c.labels != 1
    swapped = Domain("c", c.images[kept], np.where(c.labels[kept] == 0, 1, 0))  # z is 0 and x is 1 here
    answer = evaluate(classifier, replace(tiny, task=Classification(("z", "x")), domains=(swapped,)), draws=2)
    expected = (classifier.logits(c.images[kept]).argmax(1).numpy() == c.labels[kept]).mean()
    assert answer.metrics["accuracy"].value == pytest.approx(expected) and any("no case here is y" in text for text in answer.warnings)


def test_the_command_on_a_folder(classifier: Deployed, tiny: DomainDataset, classes_run: Path, tmp_path: Path) -> None:
    for n, (image, label) in enumerate(zip(tiny["c"].images, tiny["c"].labels, strict=True)):
        place = tmp_path / "site/our <b>hospital</b>" / "xyz"[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(place / f"{n}.png")
    command = ["evaluate", str(classes_run / "export-safetensors"), "--data", f"folder:{tmp_path / 'site'}", "--out", str(tmp_path / "out")]
    command += ["--cache", str(tmp_path / "cache")]
    done = CliRunner().invoke(app, [*command, "--threshold", "accuracy=0.1"])
    assert done.exit_code == 0 and "passed" in done.output, done.output
    values = json.loads((tmp_path / "out/acceptance.json").read_text())
    expected = (classifier.logits(tiny["c"].images).argmax(1).numpy() == tiny["c"].labels).mean()
    assert values["passed"] is True and values["metrics"]["accuracy"]["value"] == pytest.approx(expected)
    page = (tmp_path / "out/acceptance.html").read_text()
    assert "<b>hospital</b>" not in page and "&lt;b&gt;hospital" in page
    failed = CliRunner().invoke(app, [*command, "--threshold", "accuracy=1.1"])
    assert failed.exit_code == 1 and "failed" in failed.output
    wrong = CliRunner().invoke(app, [*command, "--threshold", "accuracy"])
    assert wrong.exit_code == 2 and "METRIC=VALUE" in wrong.output
    assert CliRunner().invoke(app, [*command[:3], "folder:/nowhere"]).exit_code == 2
