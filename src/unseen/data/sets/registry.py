"""Every data set by name."""

from __future__ import annotations

from functools import partial

from unseen.data.domain import DomainDataset
from unseen.data.reading.class_folders import CLASS_LAYOUT, read_classes
from unseen.data.reading.manifest import CSV_LAYOUT, read_manifest
from unseen.data.reading.piece import ReadPlan
from unseen.data.reading.site_folders import SITE_LAYOUT, has_masks, read_sites
from unseen.data.reading.source import Source
from unseen.data.sets import fundus, gdrbench, isic2019, midog, pacs, prostate
from unseen.data.sets.camelyon17 import CLASSES as CAMELYON_CLASSES
from unseen.data.sets.camelyon17 import DOMAINS as CAMELYON_DOMAINS
from unseen.data.sets.camelyon17 import read_camelyon17
from unseen.data.sets.digits5 import DOMAINS as DIGITS
from unseen.data.sets.digits5 import read_digits5
from unseen.data.sets.entry import DatasetEntry
from unseen.data.sets.vessels import read_vessels

__all__ = ["DATASETS", "OWN_FOLDER", "OWN_TABLE"]

# Domains with the other names under which people have them.
VLCS: dict[str, tuple[str, ...]] = {"Caltech101": ("Caltech",), "LabelMe": (), "SUN09": ("SUN",), "VOC2007": ("VOC", "Pascal")}
OFFICE_HOME: dict[str, tuple[str, ...]] = {"Art": (), "Clipart": (), "Product": (), "Real World": ("Real",)}
TERRA: dict[str, tuple[str, ...]] = {"location_38": ("L38",), "location_43": ("L43",), "location_46": ("L46",), "location_100": ("L100",)}
OFFICE_CALTECH: dict[str, tuple[str, ...]] = {"amazon": (), "caltech": ("caltech10",), "dslr": (), "webcam": ()}
DOMAINNET: dict[str, tuple[str, ...]] = {
    "clipart": ("clip",),
    "infograph": ("info",),
    "painting": ("paint",),
    "quickdraw": ("quick",),
    "real": (),
    "sketch": (),
}


def _styled_digits() -> DomainDataset:
    from unseen.data.sets.styled_digits import styled_digits  # scikit-learn is slow to import, and not needed for real data

    return styled_digits()


def _phantom_sites() -> DomainDataset:
    from unseen.data.sets.phantom_sites import phantom_sites

    return phantom_sites()


def _in_folders(name: str, about: str, domains: dict[str, tuple[str, ...]]) -> DatasetEntry:
    layout = f"<domain>/<class>/<image> with the domains {', '.join(domains)}"
    return DatasetEntry(name, "classification", about, layout, domains=tuple(domains), read=partial(read_classes, domains=domains))


def _own_folder(source: Source) -> ReadPlan:
    return read_sites(source) if has_masks(source) else read_classes(source)


OWN_FOLDER = DatasetEntry("folder", "classification", "your own folders", f"either {CLASS_LAYOUT}; or {SITE_LAYOUT}", read=_own_folder)
OWN_TABLE = DatasetEntry("csv", "classification", "your own table", CSV_LAYOUT, read=read_manifest)

_ENTRIES = (
    DatasetEntry(
        "styled-digits",
        "classification",
        "handwritten digits in four styles; made on the spot, nothing to download",
        size=32,
        classes=tuple("0123456789"),
        domains=("plain", "textured", "inverted", "outline"),
        make=_styled_digits,
    ),
    DatasetEntry(
        "phantom-sites",
        "segmentation",
        "phantoms of disc and cup at several sites; made on the spot, nothing to download",
        size=64,
        classes=("disc", "cup"),
        domains=("north", "east", "south", "west"),
        make=_phantom_sites,
    ),
    DatasetEntry(
        "pacs",
        "classification",
        "photos, art paintings, cartoons and sketches; 9,991 images of 7 classes",
        f"<domain>/<class>/<image> with the domains {', '.join(pacs.DOMAINS)}; the lists *_kfold.txt anywhere",
        classes=pacs.CLASSES,
        domains=pacs.DOMAINS,
        marks=(r"_kfold\.txt$",),
        read=pacs.read_pacs,
    ),
    _in_folders("vlcs", "objects in four collections of photos; 10,729 images of 5 classes", VLCS),
    _in_folders("office-home", "office and home objects; 15,588 images of 65 classes", OFFICE_HOME),
    _in_folders("terra-incognita", "wild animals at four camera traps; 24,788 images of 10 classes", TERRA),
    _in_folders("office-caltech10", "office objects from four cameras and shops; 2,533 images of 10 classes", OFFICE_CALTECH),
    _in_folders("domainnet", "six styles; 586,575 images of 345 classes", DOMAINNET),
    DatasetEntry(
        "digits5",
        "classification",
        "digits: MNIST, MNIST-M, SVHN, SynthDigits, USPS; at least two of them",
        "in any folders: train-images-idx3-ubyte(.gz) and its kind; mnist_m_train/ with mnist_m_train_labels.txt (or mnist_m*.tar.gz); "
        "train_32x32.mat and test_32x32.mat; synth_train_32x32.mat; usps(.bz2) and usps.t(.bz2), or usps.h5",
        size=32,
        classes=tuple("0123456789"),
        domains=DIGITS,
        marks=(r"-idx3-ubyte(\.gz)?$", r"usps(\.t)?\.bz2$", r"_32x32\.mat$", r"mnist_m_(train|test)"),
        read=read_digits5,
    ),
    DatasetEntry(
        "camelyon17",
        "classification",
        "tumour in lymph node patches of five hospitals (WILDS); 455,954 patches",
        "metadata.csv beside patches/patient_004_node_4/patch_patient_004_node_4_x_3328_y_21792.png and so on",
        size=96,
        classes=CAMELYON_CLASSES,
        domains=CAMELYON_DOMAINS,
        marks=(r"patch_patient_\d+_node_\d+_x_",),
        read=read_camelyon17,
    ),
    DatasetEntry(
        "camelyon17-tenth",
        "classification",
        "a tenth of camelyon17, stratified by hospital and class",
        "as camelyon17",
        size=96,
        classes=CAMELYON_CLASSES,
        domains=CAMELYON_DOMAINS,
        read=partial(read_camelyon17, fraction=0.1),
    ),
    DatasetEntry(
        "gdrbench",
        "classification",
        "diabetic retinopathy, five grades, up to eight sites",
        "images/<site>/<grade>/<image>, grades nodr, mild_npdr, moderate_npdr, severe_npdr, pdr (or 0 to 4); splits/<site>_train.txt",
        classes=tuple(gdrbench.GRADES),
        domains=gdrbench.DOMAINS,
        marks=(r"/mild_npdr/",),
        read=gdrbench.read_gdrbench,
    ),
    DatasetEntry(
        "isic2019",
        "classification",
        "skin lesions of 8 kinds from six centres (FLamby's Fed-ISIC2019); 23,247 images",
        "train_test_split (columns image, target, center, fold) and the images anywhere",
        classes=isic2019.CLASSES,
        domains=isic2019.DOMAINS,
        marks=(r"(^|/)ISIC_\d+\.jpg$",),
        read=isic2019.read_isic2019,
    ),
    DatasetEntry(
        "midog2022",
        "classification",
        "mitotic figures and look-alikes in five kinds of tumour; patches around 20,552 annotated cells",
        "MIDOG2022_training.json and the images (001.tiff ... or .png) anywhere",
        size=128,
        classes=midog.CLASSES,
        domains=midog.DOMAINS,
        marks=(r"(^|/)MIDOG[^/]*\.json$",),
        read=midog.read_midog,
    ),
    DatasetEntry(
        "fundus",
        "segmentation",
        "optic disc and cup in fundus photographs of four sites (DoFE's release)",
        "Domain1/train/ROIs/image/<image> and Domain1/train/ROIs/mask/<mask>, likewise test, and Domain2 to Domain4",
        size=384,
        classes=fundus.MAP.names,
        domains=fundus.DOMAINS,
        marks=(r"Domain\d+/(train|test)/ROIs/",),
        read=fundus.read_fundus,
    ),
    DatasetEntry(
        "prostate",
        "segmentation",
        "prostate in MRI of six sites; 116 volumes cut into axial slices",
        "<site>/Case00.nii.gz with <site>/Case00_segmentation.nii.gz",
        size=384,
        classes=("prostate",),
        domains=prostate.DOMAINS,
        marks=(r"\.nii(\.gz)?$",),
        read=prostate.read_prostate,
    ),
    DatasetEntry(
        "retinal-vessels",
        "segmentation",
        "vessels in fundus photographs, a site for each collection (DRIVE, HRF, STARE, CHASE, LES ...)",
        SITE_LAYOUT,
        size=384,
        classes=("vessel",),
        read=read_vessels,
    ),
)

DATASETS: dict[str, DatasetEntry] = {entry.name: entry for entry in _ENTRIES}
